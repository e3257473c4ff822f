"""The figures of a point, derived from the stored times of its requests; the client's host stores only the times."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from flagperf_driver.measuring import statistics
from pytest_flagperf.stored import FormatError, type_check

FILES = "*.requests.jsonl.gz"
PERCENTILES = (50, 90, 99)
WITHIN = 99
"""The percentile of the times that must be within the limits."""
_WINDOW_S = 0.25
_SURE = 0.95


@dataclass(frozen=True)
class PointHead:
    """The first line of a file."""

    point: str
    begin_s: float
    """The begin of the measurement, by the clock of the client's host since the epoch."""
    seconds: float
    limits: str
    """The limits for which the point's rate was tried; empty without."""


@dataclass(frozen=True)
class StoredRequest:
    """A line; times are in seconds since the begin of the measurement."""

    request: int
    prompt: int
    """The tokens of the prompt."""
    judged: bool
    """Whether the prompt is the begin of a held-out text, which other points had, too."""
    sent: float
    tokens: list[int]
    times: list[float]
    """When each token arrived."""
    ended: float | None
    """None: not before the end of the load."""
    problem: str = ""

    @property
    def first_s(self) -> float:
        return math.inf if self.problem else self.times[0] - self.sent

    @property
    def token_s(self) -> float:
        return math.inf if self.problem else (self.times[-1] - self.times[0]) / max(len(self.times) - 1, 1)


class Limits(NamedTuple):
    """The longest time to the first token, and for a token after it."""

    first_s: float
    token_s: float


@dataclass(frozen=True)
class StoredPoint:
    """A point's file."""

    head: PointHead
    requests: Sequence[StoredRequest]

    @property
    def measured(self) -> list[StoredRequest]:
        """The requests that were sent within the measurement, and ended."""
        return [one for one in self.requests if one.ended is not None and 0 <= one.sent <= self.head.seconds]

    @property
    def token_rate(self) -> float:
        """Output tokens per second, also of requests that began or ended outside of the measurement."""
        return sum(0 < time_s <= self.head.seconds for one in self.requests for time_s in one.times) / self.head.seconds

    @property
    def prompt_rate(self) -> float:
        """Tokens per second of the prompts whose first token arrived."""
        began = [one.prompt for one in self.requests if one.times and 0 < one.times[0] <= self.head.seconds]
        return sum(began) / self.head.seconds

    @property
    def user_rate(self) -> float:
        """Tokens per second that a user sees after the first one, in the median."""
        return 1 / max(median(one.token_s for one in self.measured), 1e-9)

    @property
    def interval(self) -> float | None:
        """Half of the 95 % confidence interval of the token rate, as a share of it; None if it is not known."""
        count = int(self.head.seconds / _WINDOW_S)
        tokens = [0] * count
        for time_s in (time_s for one in self.requests for time_s in one.times if time_s > 0):
            if time_s < count * _WINDOW_S:
                tokens[int(time_s / _WINDOW_S)] += 1
        interval = statistics.interval([_WINDOW_S / max(one, 1) for one in tokens])
        return interval if math.isfinite(interval) else None

    def within(self, limits: Limits) -> float:
        """Return the share of the requests that were within both limits."""
        good = sum(one.first_s <= limits.first_s and one.token_s <= limits.token_s for one in self.measured)
        return good / len(self.measured)

    def keeps(self, limits: Limits) -> bool:
        """Return True if the percentiles of both times are within the limits."""
        times = ([one.first_s for one in self.measured], [one.token_s for one in self.measured])
        return all(percentile(values, WITHIN) <= limit for values, limit in zip(times, limits, strict=True))

    def times(self) -> dict[str, float]:
        """Return the percentiles of all times of answered requests."""
        answered = [one for one in self.measured if not one.problem]
        values = {
            "ttft": [one.first_s for one in answered],
            "tpot": [one.token_s for one in answered],
            "itl": [after - before for one in answered for before, after in itertools.pairwise(one.times)],
        }
        return {
            f"{name}_p{percent}": percentile(of_name, percent)
            for name, of_name in values.items()
            for percent in PERCENTILES
            if of_name
        }

    def repeated_speed(self) -> float | None:
        """Return how many times faster tokens of prompts came that the server has seen before."""
        times = {judged: [one.token_s for one in self.measured if one.judged is judged] for judged in (True, False)}
        return median(times[False]) / max(median(times[True]), 1e-9) if all(times.values()) else None


def read(folder: Path) -> dict[str, StoredPoint]:
    """Return the points whose requests are stored in a host's folder, by their names; FormatError for another file."""
    points = (_read(path) for path in sorted(folder.glob(FILES)))
    return {point.head.point: point for point in points if point.head.seconds > 0}


def _read(path: Path) -> StoredPoint:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            head, *lines = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise FormatError(f"{path}: expected lines of JSON about requests: {error}") from None
    requests = [_request(line, f"{path}:{number}") for number, line in enumerate(lines, 2)]
    return StoredPoint(type_check.typed(PointHead, head, str(path)), requests)


def _request(line: Any, where: str) -> StoredRequest:
    request = type_check.typed(StoredRequest, line, where)
    if not request.problem and request.ended is not None and not request.times:
        raise FormatError(f"{where}: an answered request has no times")
    return request


def percentile(values: Iterable[float], percent: int) -> float:
    """Return the smallest value that so many per cent of the values do not exceed; infinity without values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else math.inf


def most_beyond(requests: int, beyond: int) -> float:
    """Return the share of all requests that is beyond the limits at most, with a confidence of 95 %.

    So many of the requests were; the share is the one at which that few would be found in one of twenty measurements.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        few = sum(math.comb(requests, one) * share**one * (1 - share) ** (requests - one) for one in range(beyond + 1))
        low, high = (share, high) if few > 1 - _SURE else (low, share)
    return high
