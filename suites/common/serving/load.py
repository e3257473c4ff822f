"""Load on servers: a fixed number of users, or requests that arrive at a fixed rate.

Users send the next request when the last one is answered. The first request of each user is the warm-up, a full wave at
this concurrency. No user waits for the others after it: all users are in the middle of requests when the measurement
begins, and when it ends. At a fixed rate a request is sent when it is due, whatever became of those before it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from common.serving.client import Answer, Client, Request
from flagperf_driver.measuring import statistics

_SLICE_S = 0.25
"""The length of a window, of which each has a number of tokens."""
_FEWEST_WAVES = 3
"""The fewest requests of a user that are measured."""
_PATIENCE, _LONGEST_S = 10, 200.0
"""A slow server gets so many times the longest time of a point for the fewest requests, but not so long that the rank
would seem to hang (``hang_timeout_s``)."""
_WARM_UP_SHARE = 10
"""At a fixed rate one of so many requests comes before the measurement."""


@dataclass(frozen=True)
class LoadLimits:
    """How long a point is measured; the keys of the config with the same meaning."""

    least_s: float
    most_s: float
    interval: float


@dataclass(frozen=True)
class TokenLimits:
    """The longest times that users accept, of which the 99th percentiles are judged."""

    first_s: float
    token_s: float


@dataclass(frozen=True)
class Load:
    """What a point's requests brought."""

    answers: Sequence[Answer]
    """All, also those of the warm-up, and those that had not ended."""
    begin: float
    """Of the measurement, by the clock of the answers."""
    seconds: float

    @property
    def measured(self) -> list[Answer]:
        """Those that were sent within the measurement, and ended."""
        end = self.begin + self.seconds
        return [one for one in self.answers if one.ended is not None and self.begin <= one.sent <= end]

    @property
    def answered(self) -> list[Answer]:
        return [answer for answer in self.measured if not answer.problem]

    @property
    def failed(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.problem]

    @property
    def request_rate(self) -> float:
        """Answers per second, by the tokens that arrived within the measurement."""
        end = self.begin + self.seconds
        tokens = sum(self.begin < time_s <= end for answer in self.answers for time_s in answer.times)
        return tokens / self.seconds / max((answer.request.tokens for answer in self.answers), default=1)


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
        begin = marks[0][0]
        while True:
            await asyncio.sleep(_SLICE_S)
            check()
            marks.append((time.perf_counter(), arrived()))
            spent = marks[-1][0] - begin
            within = sum(answer.sent >= begin for wave in waves for answer in wave)
            patience_s = max(limits.most_s, min(_PATIENCE * limits.most_s, _LONGEST_S))
            enough = within >= _FEWEST_WAVES * len(clients) or spent > patience_s
            known = spent >= limits.most_s or statistics.settled(_token_times(marks), limits.interval)
            if enough and spent >= limits.least_s and known:
                break
        unfinished = [client.under_way for client in clients if client.under_way is not None and client.under_way.sent]
    finally:
        await _cancel(users)
    return Load([*itertools.chain.from_iterable(waves), *unfinished], begin, spent)


def _token_times(marks: Sequence[tuple[float, int]]) -> list[float]:
    """Return the mean time of a token in each window."""
    pairs = itertools.pairwise(marks)
    return [(end - begin) / max(after - before, 1) for (begin, before), (end, after) in pairs]


@dataclass(frozen=True)
class Arrivals:
    """Requests that arrive independently of each other, at a fixed rate (Poisson); the same ones for a seed."""

    rate: float
    """Requests per second."""
    requests: int
    """How many are measured."""
    seed: int


async def open_loop(
    client: Callable[[], Client],
    requests: Iterator[Request],
    arrivals: Arrivals,
    limits: TokenLimits,
    check: Callable[[], None] = lambda: None,
) -> Load:
    """Send each request when it is due, and wait until all are answered.

    The load ends early if the 99th percentiles of all its requests would be beyond the limits. ``client`` returns a
    connection, of which each request under way needs one of its own.
    """
    gaps, allowed = random.Random(arrivals.seed), arrivals.requests // 100
    idle: list[Client] = []
    answers: list[Answer] = []
    under_way: set[asyncio.Task[None]] = set()

    async def user(due: float) -> None:
        own = idle.pop() if idle else client()
        answers.append(await own.complete(next(requests), due))
        idle.append(own)

    warm_up = -(-arrivals.requests // _WARM_UP_SHARE)
    due = begin = checked = time.perf_counter()
    try:
        for number in range(warm_up + arrivals.requests):
            due += gaps.expovariate(1.0) / arrivals.rate
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            begin = due if number <= warm_up else begin
            task = asyncio.create_task(user(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            if time.perf_counter() - checked > _SLICE_S:
                checked = time.perf_counter()
                check()
                if number > warm_up and beyond(Load(answers, begin, due - begin), limits) > allowed:
                    break
        while under_way:
            await asyncio.wait(under_way, timeout=_SLICE_S)
            check()
    finally:
        await _cancel([*under_way])
    return Load(answers, begin, due - begin)


def beyond(load: Load, limits: TokenLimits) -> int:
    """Return how many requests took longer to the first token, or for a token after it; the larger number of both."""
    first = sum(bool(one.problem) or one.first_token_s > limits.first_s for one in load.measured)
    token = sum(bool(one.problem) or one.token_s > limits.token_s for one in load.measured)
    return max(first, token)


def keeps(load: Load, limits: TokenLimits) -> bool:
    """Return True if the 99th percentiles are within the limits."""
    return bool(load.measured) and beyond(load, limits) <= len(load.measured) // 100


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
