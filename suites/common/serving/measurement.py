"""The measurement of a serving suite: its server, the test of the client, the judgement of answers, and the load.

The first rank is the client of the servers of all ranks, each of which has one device; the other ranks wait for it.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from common.serving import load, selftest
from common.serving.client import Answer, Client, Request, RequestFailed
from common.serving.process import ServerError, ServerProcess
from flagperf_driver import seeds
from flagperf_driver.measuring.measurement import Measurement, Point

CONCURRENCY = "concurrency"
_JUDGED_EVERY = 4
"""Of the timed requests, so many have one whose answer is judged."""
_PROMPTS = "prompts"


class Model(Protocol):
    """What a serving suite brings: a model with the engine that serves it, and the judge of its answers."""

    name: str
    """The model's name in the API."""
    vocabulary: int
    texts: Sequence[Sequence[int]]
    """Held-out texts; their begins are the prompts of requests whose answers are judged."""
    log_perplexity: float | None
    """Of all texts, by the trainer's own evaluation; None if the weights come from no training."""

    def command(self, port: int) -> Sequence[str]:
        """Return the program that serves the model on a port of this host, with its arguments."""

    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        """Return how many tokens of each answer are the most probable ones by the model without the engine."""


class Serving(Measurement):
    """Points: the start of the server, the judgement of its answers, and each concurrency."""

    together = True
    on_host = True

    def __init__(self, ctx: Any, model: Model, gather: Callable[[Any], list[Any]]) -> None:
        """Start this rank's server; ``gather`` returns the values of all ranks."""
        self._ctx, self._config, self._model, self._gather = ctx, ctx.config, model, gather
        self._folder = Path(os.environ.get("FLAGPERF_LOG_DIR") or ".")
        self._server = ServerProcess(model.command, self._folder / f"rank{ctx.rank}.server.log")
        try:
            self._ready_s = max(gather(self._server.wait_ready(self._config.ready_timeout_s)))
        except ServerError:
            self._server.stop()
            raise
        self._urls: list[str] = gather(self._server.url)
        self._prompts = self._new_prompts()
        self._texts = min(self._config.accuracy_texts, len(model.texts))
        self._figures: Mapping[str, float] = {}
        self._facts: Mapping[str, Any] = {}

    # -- what the loop calls -------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        try:
            yield Point("start")
            if not self._ctx.synthetic:
                yield Point("accuracy")
            # With fewer requests than servers a device would be idle.
            for number in (one for one in self._config.concurrencies if one >= self._ctx.world_size):
                yield Point(f"{number} at once", {CONCURRENCY: number})
        finally:
            self._server.stop()

    def work(self, point: Point) -> Mapping[str, float]:  # noqa: ARG002 - the client times the requests itself
        return {}

    def prepare(self, point: Point) -> None:
        """Measure the point on the first rank, and give its figures to all."""
        found: Mapping[str, float] = {}
        self._facts = {}
        self._server.check(f"at the point {point.name!r}")
        if self._ctx.rank == 0:
            if CONCURRENCY in point.values:
                found = self._loaded(point)
            elif point.name == "start":
                found = self._started()
            else:
                found = asyncio.run(self._judged())
        self._figures, self._facts = self._gather((found, self._facts))[0]

    def run(self, iterations: int) -> None:
        raise NotImplementedError("a serving suite times requests, not iterations")

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:  # noqa: ARG002
        return self._figures

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    # -- points --------------------------------------------------------------------------------------------

    def _started(self) -> Mapping[str, float]:
        tested = selftest.run(self._folder / "rank0.echo.log")
        self._facts = {"first_token_error_s": tested.first_token_error_s, "gap_error_s": tested.gap_error_s}
        return {"time_to_ready": self._ready_s, "client_rate": tested.rate}

    async def _judged(self) -> Mapping[str, float]:
        """Compare answers with the model without the engine, and held-out texts with the trainer's evaluation."""
        requests = iter([self._request_of(number, number) for number in range(self._texts)])
        with self._clients(len(self._urls)) as clients:
            answers = await _answers(clients, requests)
            self._store("accuracy", answers)
            self._facts = _problems(answers)
            found = {"right_tokens": self._right(answers)}
            expected = self._model.log_perplexity
            if expected is not None:
                # The server that is farthest from the trainer counts.
                losses = [await self._log_perplexity(client) for client in clients]
                loss = max(losses, key=lambda one: abs(one - expected))
                self._facts = {**self._facts, "log_perplexity": loss, "trained": expected}
                found["perplexity_agreement"] = max(0.0, 1 - abs(loss / expected - 1))
        return found

    async def _log_perplexity(self, client: Client) -> float:
        """Return the mean loss of a token of the texts, by the engine."""
        try:
            return -fmean([one for text in self._model.texts for one in await client.log_probabilities(text)])
        except RequestFailed as error:
            raise ServerError(f"{error}; {self._server.last_words()}") from None

    def _loaded(self, point: Point) -> Mapping[str, float]:
        limits = load.LoadLimits(self._config.point_least_s, self._config.point_most_s, self._config.point_interval)

        def check() -> None:
            self._server.check(f"at {point.name}")

        async def measured() -> load.Load:
            count = point.values[CONCURRENCY]
            with self._clients(count) as clients:
                return await load.closed_loop(clients, self._timed_requests(), limits, check)

        result = asyncio.run(measured())
        self._store(f"concurrency{point.values[CONCURRENCY]}", [*result.warmup, *result.answers])
        self._facts = {
            "requests": len(result.answers), "measured_s": result.seconds, "interval": result.interval,
            **_problems([*result.warmup, *result.answers]),
        }  # fmt: skip
        check()
        if not result.answered:
            why = result.failed[0].problem if result.failed else "none ended in time"
            raise ServerError(f"no request was answered at {point.name}: {why}; {self._server.last_words()}")
        judged = [answer for answer in result.answers if answer.request.text is not None]
        found = {**load.figures(result, self._ctx.world_size), "server_memory": float(self._server.peak_memory())}
        if judged:
            found["right_under_load"] = self._right(judged)
        return {**found, **load.faster_repeated(result)}

    # -- requests ------------------------------------------------------------------------------------------

    def _timed_requests(self) -> Iterator[Request]:
        """Yield prompts that the server has not seen, and now and then one whose answer is judged."""
        for number in itertools.count():
            if number % _JUDGED_EVERY == _JUDGED_EVERY - 1 and not self._ctx.synthetic:
                yield self._request_of(number, number // _JUDGED_EVERY % self._texts)
            else:
                yield Request(number, next(self._prompts), self._config.answer_tokens)

    def _request_of(self, number: int, text: int) -> Request:
        prompt = self._model.texts[text][: self._config.prompt_tokens]
        return Request(number, prompt, self._config.answer_tokens, text)

    def _new_prompts(self) -> Iterator[Sequence[int]]:
        generator = random.Random(seeds.derive(self._ctx.seed, _PROMPTS))
        while True:
            yield generator.choices(range(self._model.vocabulary), k=self._config.prompt_tokens)

    def _right(self, answers: Sequence[Answer]) -> float:
        """Return the share of right tokens; a token that is missing is wrong."""
        right = self._model.right([answer.request.prompt for answer in answers], [answer.tokens for answer in answers])
        return sum(right) / sum(answer.request.tokens for answer in answers)

    @contextmanager
    def _clients(self, count: int) -> Iterator[list[Client]]:
        """Open as many clients, which share the servers equally."""
        with ExitStack() as opened:
            urls = itertools.islice(itertools.cycle(self._urls), count)
            new = (Client(url, self._model.name, self._config.event_timeout_s) for url in urls)
            yield [opened.enter_context(client) for client in new]

    def _store(self, name: str, answers: Sequence[Answer]) -> None:
        """Write all times of each request, so that every figure can be derived again."""
        with gzip.open(self._folder / f"rank0.{name}.requests.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(answer.to_json(), separators=(",", ":")) + "\n" for answer in answers)


async def _answers(clients: Sequence[Client], requests: Iterator[Request]) -> list[Answer]:
    """Return the answers of all requests, in their order."""

    async def user(client: Client) -> list[Answer]:
        return [await client.complete(request) for request in requests]

    answers = itertools.chain.from_iterable(await asyncio.gather(*map(user, clients)))
    return sorted(answers, key=lambda answer: answer.request.number)


def _problems(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return how many requests failed, and why the first one did."""
    problems = [answer.problem for answer in answers if answer.problem]
    return {"failed": len(problems), **({"first_problem": problems[0]} if problems else {})}
