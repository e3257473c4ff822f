"""Statistics over rounds: median, mean, spread and confidence interval; NaN values are ignored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from pytest_flagperf.results.figures.units import count

SURE = 0.95
"""The confidence of the interval of the mean."""
ENOUGH = 3
"""The minimum number of rounds for statistics."""
_PANELS = 256


@dataclass(frozen=True)
class Summary:
    """A summary of values; ``stdev`` is the sample's, None with fewer than two values; all is None without values."""

    count: int
    median: float | None
    mean: float | None
    stdev: float | None
    lowest: float | None = None
    highest: float | None = None
    variation: float | None = None
    """The coefficient of variation: stdev as a share of the mean."""
    interval: tuple[float, float] | None = None
    """The confidence interval of the mean by Student's distribution."""


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the finite values in their order."""
    return [value for value in values if value is not None and math.isfinite(value)]


def summarize(values: Iterable[float | None]) -> Summary:
    numbers = finite(values)
    if not numbers:
        return Summary(0, None, None, None)
    mean = statistics.fmean(numbers)
    stdev = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Summary(
        count=len(numbers),
        median=statistics.median(numbers),
        mean=mean,
        stdev=stdev,
        lowest=min(numbers),
        highest=max(numbers),
        variation=stdev / abs(mean) if stdev is not None and mean else None,
        interval=_interval(mean, stdev, len(numbers)),
    )


def few(rounds: int) -> str | None:
    """Return a sentence if there are too few rounds for statistics, else None."""
    if rounds >= ENOUGH:
        return None
    if rounds < 2:
        text = f"{count(rounds, 'round')} with a value: the variation is unknown"
    else:
        text = "2 rounds with a value: the mean is only known to within 9 times their spread"
    return f"{text}; repeat the case at least {ENOUGH} times"


def _interval(mean: float, stdev: float | None, values: int) -> tuple[float, float] | None:
    if stdev is None:
        return None
    reach = student_limit((1 - SURE) / 2, values - 1) * stdev / math.sqrt(values)
    return mean - reach, mean + reach


# -- Student's distribution ------------------------------------------------------------------------------------


def student_tail(errors: float, freedom: float) -> float:
    """The probability that a mean exceeds its expectation by this many estimated standard errors.

    With errors = sqrt(freedom) tan(angle) the density is a power of the cosine, integrated by Simpson's rule.
    """
    start = math.atan(errors / math.sqrt(freedom))
    step = (math.pi / 2 - start) / _PANELS
    angles = (start + number * step for number in range(_PANELS + 1))
    heights = [math.pow(max(0.0, math.cos(angle)), freedom - 1) for angle in angles]
    area = step / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    return area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


@cache
def student_limit(chance: float, freedom: float) -> float:
    """The number of estimated standard errors exceeded with this probability: the inverse of ``student_tail``."""
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        above = student_tail(math.sqrt(freedom) * math.tan(middle), freedom) > chance
        low, high = (middle, high) if above else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
