"""Load on servers: a fixed number of users, each of whom sends the next request when the last one is answered.

The first request of each user is the warm-up, a full wave at this concurrency. No user waits for the others after it:
all users are in the middle of requests when the measurement begins, and when it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from common.serving.client import Answer, Client, Request
from flagperf_driver.measuring import statistics

PERCENTILES = (50, 90, 99)
_SLICE_S = 0.25
"""The length of a window, of which each has a number of tokens."""
_FEWEST_WAVES = 3
"""The fewest requests of a user that are measured."""
_PATIENCE = 10
"""A slow server gets so many times the longest time of a point for the fewest requests."""


@dataclass(frozen=True)
class LoadLimits:
    """How long a point is measured; the keys of the config with the same meaning."""

    least_s: float
    most_s: float
    interval: float


@dataclass(frozen=True)
class Load:
    """What a point's requests brought."""

    answers: Sequence[Answer]
    """Those that were sent and answered, or failed, within the measurement."""
    seconds: float
    tokens: int
    """That arrived within the measurement, also of requests that began or ended outside."""
    interval: float
    """Half of the 95 % confidence interval of the rate, as a share of it."""
    warmup: Sequence[Answer] = ()

    @property
    def answered(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.problem]

    @property
    def failed(self) -> list[Answer]:
        return [answer for answer in (*self.warmup, *self.answers) if answer.problem]


async def closed_loop(
    clients: Sequence[Client],
    requests: Iterator[Request],
    limits: LoadLimits,
    check: Callable[[], None] = lambda: None,
) -> Load:
    """Let each client send requests without a pause, until the rate is known well enough.

    ``check`` is called all the time, and may raise an error that ends the load.
    """
    waves: list[list[Answer]] = [[] for _ in clients]
    warm = asyncio.Event()

    async def user(number: int, client: Client) -> None:
        while True:
            answer = await client.complete(next(requests))
            waves[number].append(answer)
            if all(waves):
                warm.set()
            if answer.problem:
                await asyncio.sleep(_SLICE_S)  # a server that refuses everything is not asked thousands of times

    def arrived() -> int:
        return sum(client.tokens for client in clients)

    users = [asyncio.create_task(user(number, client)) for number, client in enumerate(clients)]
    try:
        await warm.wait()
        marks = [(time.perf_counter(), arrived())]
        while True:
            await asyncio.sleep(_SLICE_S)
            check()
            marks.append((time.perf_counter(), arrived()))
            begin, now = marks[0][0], marks[-1][0]
            within = [answer for wave in waves for answer in wave if answer.sent >= begin]
            interval = _interval(marks)
            spent = now - begin
            enough = len(within) >= _FEWEST_WAVES * len(clients) or spent > _PATIENCE * limits.most_s
            if enough and spent >= limits.least_s and (interval <= limits.interval or spent >= limits.most_s):
                break
    finally:
        for one in users:
            one.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    warmup = [answer for wave in waves for answer in wave if answer.sent < begin]
    return Load(within, spent, marks[-1][1] - marks[0][1], interval, warmup)


def _interval(marks: Sequence[tuple[float, int]]) -> float:
    """Return half of the 95 % confidence interval of the time of a token, as a share of it."""
    pairs = itertools.pairwise(marks)
    return statistics.interval([(end - begin) / max(after - before, 1) for (begin, before), (end, after) in pairs])


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def figures(load: Load, devices: int) -> dict[str, float]:
    """Return the figures of a point that was measured; none without an answered request."""
    answered = load.answered
    if not answered:
        return {}
    times = {
        "ttft": [answer.first_token_s for answer in answered],
        "tpot": [answer.token_s for answer in answered],
        "itl": [gap for answer in answered for gap in answer.gaps_s],
    }
    rate = load.tokens / load.seconds
    return {
        "output_rate": rate,
        "device_rate": rate / devices,
        "user_rate": 1 / max(median(times["tpot"]), 1e-9),
        **{
            f"{name}_p{percent}": percentile(values, percent)
            for name, values in times.items()
            for percent in PERCENTILES
        },
    }


def faster_repeated(load: Load) -> Mapping[str, float]:
    """Return how many times faster the tokens of judged requests came, whose prompts the server has seen before."""
    repeated = [answer.token_s for answer in load.answered if answer.request.text is not None]
    new = [answer.token_s for answer in load.answered if answer.request.text is None]
    return {"repeated_speed": median(new) / max(median(repeated), 1e-9)} if repeated and new else {}
