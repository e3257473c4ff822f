"""The measurement of a serving suite: its server, the test of the client, the judgement of answers, and the load.

The first rank is the client of the servers of all ranks, each of which has one device, or of one server that has all
devices; the other ranks wait for it. It stores the times of all requests; the harness derives the figures from them.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from common.serving import load, selftest
from common.serving.client import Answer, Client, Request, RequestFailed
from common.serving.process import NoServer, ServerError, ServerProcess
from common.serving.scored import Scored
from common.serving.search import RateSearch
from common.serving.standing import StandingServer, served_name
from flagperf_driver import seeds
from flagperf_driver.measuring.measurement import Measurement, Point

CONCURRENCY, RATE = "concurrency", "rate"
_JUDGED_EVERY = 4
"""Of the timed requests, so many have one whose answer is judged."""
_FEWEST_SCORED = 3
"""The fewest timed answers of a point whose scores are compared with those without load."""
_PROMPTS, _ARRIVALS = "prompts", "arrivals"
_LIMITS = ("server", "interactive")
"""The names of the limits of MLPerf, as the keys of the config have them."""
_START = 0.9
"""The first rate that is tried, as a share of what the users of the best concurrency reached."""
_LENGTHS = 10
"""A rate is kept for so many times the limit of the first token: a queue that grows slowly must become too long."""
_MOST_RATES = 4
"""A rate takes at most such a part of the time of the search, so that there are so many."""
_FEWEST_REQUESTS = 2
"""The measurement of a rate begins with its first request and ends with its last one."""


Loader = Callable[[Point, Callable[[], None]], Awaitable[load.Load]]
"""Measures a point, and calls a function all the time that raises an error if the server has ended."""


class Model(Protocol):
    """What a serving suite brings: a model with the engine that serves it, and the judge of its answers."""

    name: str
    """The model's name in the API; empty: the server's own name of its only model."""
    vocabulary: int
    texts: Sequence[Sequence[int]]
    """Held-out texts; their begins are the prompts of requests whose answers are judged."""
    trained_by: str
    """The training of the same run whose weights these are; empty if they come from this round."""
    log_perplexity: float | None
    """Of all texts, by the trainer's own evaluation; None if the weights come from no training."""
    scored: Scored | None
    """What scores answers to the texts, which are whole prompts then; None: their tokens are judged."""

    def command(self, port: int) -> Sequence[str]:
        """Return the program that serves the model on a port of this host, with its arguments."""

    def right(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[int]:
        """Return how many tokens of each answer are the most probable ones by the model without the engine."""


class Serving(Measurement):
    """Points: the start of the server, the judgement of its answers, and each concurrency."""

    together = True
    on_host = True

    def __init__(self, ctx: Any, model: Model, gather: Callable[[Any], list[Any]]) -> None:
        """Start this rank's server, if it has one; ``gather`` returns the values of all ranks."""
        self._ctx, self._config, self._model, self._gather = ctx, ctx.config, model, gather
        self._folder = Path(os.environ.get("FLAGPERF_LOG_DIR") or ".")
        self._server: ServerProcess | StandingServer
        if self._config.endpoint:
            self._server = StandingServer(self._config.endpoint)
        else:
            program = NoServer if self._config.one_server and ctx.rank else ServerProcess
            self._server = program(model.command, self._folder / f"rank{ctx.rank}.server.log")
        try:
            self._ready_s = max(gather(self._server.wait_ready(self._config.ready_timeout_s)))
            self._name = served_name(self._server.url, model.name) if ctx.rank == 0 else ""
        except ServerError:
            self._server.stop()
            raise
        # A standing server is that of all ranks.
        self._urls: list[str] = [*dict.fromkeys(filter(None, gather(self._server.url)))]
        self._prompts = self._new_prompts()
        self._texts = len(model.texts) if model.scored else min(self._config.accuracy_texts, len(model.texts))
        self._judged_texts = itertools.cycle(range(self._texts))
        self._alone: Mapping[int, Mapping[str, float]] = {}
        """The scores of answers without load, by their texts."""
        self._figures: Mapping[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._best_rate, self._searched_limits = 0.0, ""
        self._rates: dict[float, Mapping[str, Any]] = {}

    # -- what the loop calls -------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        try:
            yield Point("start")
            if not self._ctx.synthetic:
                yield Point("accuracy")
            # With fewer requests than servers a device would be idle.
            for number in (one for one in self._config.concurrencies if one >= len(self._urls)):
                yield Point(f"{number} at once", {CONCURRENCY: number})
                self._best_rate = max(self._best_rate, self._facts["request_rate"])
            for name in _LIMITS:
                yield from self._searched(name)
        finally:
            self._server.stop()

    def _searched(self, name: str) -> Iterator[Point]:
        """Yield the rates that find the highest one within limits; all ranks search by the facts of the first one."""
        self._searched_limits, keeps = name, f"keeps_{name}"
        known = [(rate, bool(facts[keeps])) for rate, facts in self._rates.items()]
        search = RateSearch(self._best_rate * _START, self._config.rate_precision, known)
        left_s: float = self._config.rate_most_s
        while left_s > 0 and (rate := search.next()) is not None:
            yield Point(f"{rate:g} requests/s", {RATE: rate})
            self._rates[rate] = self._facts
            search.add(rate, kept=bool(self._facts[keeps]))
            left_s -= self._facts["spent_s"]

    def work(self, point: Point) -> Mapping[str, float]:  # noqa: ARG002 - the client times the requests itself
        return {}

    def prepare(self, point: Point) -> None:
        """Measure the point on the first rank, and give its figures to all."""
        found: Mapping[str, float] = {}
        self._facts = {}
        self._server.check(f"at the point {point.name!r}")
        if self._ctx.rank == 0:
            if CONCURRENCY in point.values:
                found = self._loaded(point, self._closed_loop)
            elif RATE in point.values:
                found = self._loaded(point, self._open_loop)
            elif point.name == "start":
                found = self._started()
            else:
                found = asyncio.run(self._judged(point))
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
        ready = {} if self._config.endpoint else {"time_to_ready": self._ready_s}
        return {**ready, "client_rate": tested.rate}

    async def _judged(self, point: Point) -> Mapping[str, float]:
        """Compare answers with the model without the engine, and held-out texts with the trainer's evaluation.

        Answers to a set are scored instead.
        """
        requests = iter([self._request_of(number, number) for number in range(self._texts)])
        scored = self._model.scored
        with self._clients(max(self._config.concurrencies) if scored else len(self._urls)) as clients:
            begin = time.perf_counter()
            answers = await _answers(clients, requests)
            self._store(point, load.Load(answers, begin, time.perf_counter() - begin))
            self._facts = _problems(answers)
            if scored:
                self._server.check(f"at the point {point.name!r}")
                self._alone = {number: scored.score(number, answer.tokens) for number, answer in enumerate(answers)}
                self._facts |= scored.facts([*self._alone.values()])
                return {}
            found = {"right_tokens": self._right(answers)}
            expected = self._model.log_perplexity
            if expected is not None:
                # The server that is farthest from the trainer counts.
                losses = [await self._log_perplexity(client) for client in clients]
                loss = max(losses, key=lambda one: abs(one - expected))
                self._facts = {**self._facts, "log_perplexity": loss, "trained": expected, "by": self._model.trained_by}
                found["perplexity_agreement"] = max(0.0, 1 - abs(loss / expected - 1))
        return found

    async def _log_perplexity(self, client: Client) -> float:
        """Return the mean loss of a token of the texts, by the engine."""
        try:
            return -fmean([one for text in self._model.texts for one in await client.log_probabilities(text)])
        except RequestFailed as error:
            raise ServerError(f"{error}; {self._server.last_words()}") from None

    def _loaded(self, point: Point, measured: Loader) -> Mapping[str, float]:
        def check() -> None:
            self._server.check(f"at {point.name}")

        begin = time.perf_counter()
        result = asyncio.run(measured(point, check))
        self._store(point, result)
        self._facts = {
            "requests": len(result.measured), "measured_s": result.seconds, "request_rate": result.request_rate,
            **{f"keeps_{name}": load.keeps(result, self._limits(name)) for name in _LIMITS},
            **_problems(result.answers), "spent_s": time.perf_counter() - begin,
        }  # fmt: skip
        check()
        if not result.answered:
            why = result.failed[0].problem if result.failed else "none ended in time"
            raise ServerError(f"no request was answered at {point.name}: {why}; {self._server.last_words()}")
        judged = [answer for answer in result.measured if answer.request.text is not None]
        memory = self._server.peak_memory()
        found = {"server_memory": float(memory)} if memory else {}
        if judged and self._model.scored:
            if len(judged) < _FEWEST_SCORED:
                return found
            share, self._facts["under_load_interval"] = self._score_under_load(self._model.scored, judged)
            return {**found, "score_under_load": share}
        return {**found, "right_under_load": self._right(judged)} if judged else found

    def _score_under_load(self, scored: Scored, judged: Sequence[Answer]) -> tuple[float, float]:
        """Return the first score of the set as a share of the same questions' without load, with its interval."""
        texts = [answer.request.text or 0 for answer in judged]
        loaded = [scored.score(text, answer.tokens) for text, answer in zip(texts, judged, strict=True)]
        first = [next(iter(scores.values())) for scores in loaded]
        return scored.compared(first, [next(iter(self._alone[text].values())) for text in texts])

    async def _closed_loop(self, point: Point, check: Callable[[], None]) -> load.Load:
        limits = load.LoadLimits(self._config.point_least_s, self._config.point_most_s, self._config.point_interval)
        with self._clients(point.values[CONCURRENCY]) as clients:
            return await load.closed_loop(clients, self._timed_requests(), limits, check)

    async def _open_loop(self, point: Point, check: Callable[[], None]) -> load.Load:
        rate, limits = point.values[RATE], self._limits(self._searched_limits)
        fewest = max(self._config.rate_requests, round(rate * _LENGTHS * limits.first_s))
        count = max(_FEWEST_REQUESTS, min(fewest, round(rate * self._config.rate_most_s / _MOST_RATES)))
        arrivals = load.Arrivals(rate, count, seeds.derive(self._ctx.seed, _ARRIVALS))
        urls = itertools.cycle(self._urls)
        with ExitStack() as opened:

            def client() -> Client:
                return opened.enter_context(self._client(next(urls)))

            return await load.open_loop(client, self._timed_requests(), arrivals, limits, check)

    def _limits(self, name: str) -> load.TokenLimits:
        return load.TokenLimits(getattr(self._config, f"{name}_ttft_s"), getattr(self._config, f"{name}_tpot_s"))

    # -- requests ------------------------------------------------------------------------------------------

    def _timed_requests(self) -> Iterator[Request]:
        """Yield prompts that the server has not seen, and now and then one whose answer is judged."""
        judged = self._model.scored.timed if self._model.scored else not self._ctx.synthetic
        for number in itertools.count():
            if number % _JUDGED_EVERY == _JUDGED_EVERY - 1 and judged:
                yield self._request_of(number, next(self._judged_texts))
            else:
                yield Request(number, next(self._prompts), self._config.answer_tokens)

    def _request_of(self, number: int, text: int) -> Request:
        scored = self._model.scored
        if scored:
            return Request(
                number, self._model.texts[text], scored.tokens, text, stops=scored.stops, temperature=scored.temperature
            )
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
            yield [opened.enter_context(self._client(url)) for url in urls]

    def _client(self, url: str) -> Client:
        return Client(url, self._name, self._config.event_timeout_s)

    def _store(self, point: Point, result: load.Load) -> None:
        """Write the times of each request, of which the harness derives all figures, after a line about the point."""
        began = time.time() - (time.perf_counter() - result.begin)
        head = {
            "point": point.name,
            "begin_s": began,
            "seconds": round(result.seconds, 6),
            "limits": self._searched_limits,
        }
        lines = [head, *(answer.to_json(result.begin) for answer in result.answers)]
        path = self._folder / f"rank0.{point.name.replace('/', ' per ').replace(' ', '_')}.requests.jsonl.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


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
