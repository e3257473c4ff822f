"""Statistics over rounds: median, mean, spread, confidence interval and outliers; NaN values are ignored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pytest_flagperf.results.figures.units import count

SURE = 0.95
"""The confidence of the interval of the mean."""
ENOUGH = 3
"""The minimum number of rounds for an olympic mean and for finding outliers."""
APART = 0.01
"""The probability that rounds with normal noise alone have an outlier."""
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
    olympic: float | None = None
    """The mean without the best and the worst value, as in MLPerf."""
    outliers: tuple[int, ...] = ()
    """The indexes of the outliers among all given values."""


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the finite values in their order."""
    return [value for value in values if value is not None and math.isfinite(value)]


def summarize(values: Iterable[float | None]) -> Summary:
    values = list(values)
    numbers = finite(values)
    if not numbers:
        return Summary(0, None, None, None)
    mean = statistics.fmean(numbers)
    stdev = statistics.stdev(numbers) if len(numbers) > 1 else None
    places = [place for place, value in enumerate(values) if value is not None and math.isfinite(value)]
    return Summary(
        count=len(numbers),
        median=statistics.median(numbers),
        mean=mean,
        stdev=stdev,
        lowest=min(numbers),
        highest=max(numbers),
        variation=stdev / abs(mean) if stdev is not None and mean else None,
        interval=_interval(mean, stdev, len(numbers)),
        olympic=statistics.fmean(sorted(numbers)[1:-1]) if len(numbers) >= ENOUGH else None,
        outliers=tuple(places[number] for number in outliers(numbers)),
    )


def few(rounds: int) -> str | None:
    """Return a sentence if there are too few rounds for statistics, else None."""
    if rounds >= ENOUGH:
        return None
    if rounds < 2:
        text = f"{count(rounds, 'round')} with a value: the variation is unknown"
    else:
        text = "2 rounds with a value: the mean is only known to within 9 times their spread, outliers are unknown"
    return f"{text}; repeat the case at least {ENOUGH} times"


def _interval(mean: float, stdev: float | None, values: int) -> tuple[float, float] | None:
    if stdev is None:
        return None
    reach = student_limit((1 - SURE) / 2, values - 1) * stdev / math.sqrt(values)
    return mean - reach, mean + reach


def outliers(values: Sequence[float]) -> list[int]:
    """Return the indexes of outliers by Rosner's test, at most a third of the values.

    The farthest values are removed one by one before judging, so that two outliers cannot hide each other.
    """
    left, certain = dict(enumerate(values)), 0
    apart: list[int] = []
    for _ in range(len(values) // 3):
        mean, stdev = statistics.fmean(left.values()), statistics.stdev(left.values())
        if stdev <= 1e-12 * abs(mean):
            break
        place = max(left, key=lambda place: abs(left[place] - mean))
        if abs(left[place] - mean) / stdev > _farthest(len(left)):
            certain = len(apart) + 1
        apart.append(place)
        del left[place]
    return sorted(apart[:certain])


def _farthest(values: int) -> float:
    """The standard deviations from the mean that the farthest value exceeds with probability APART (Grubbs)."""
    limit = student_limit(APART / (2 * values), values - 2) ** 2
    return (values - 1) / math.sqrt(values) * math.sqrt(limit / (values - 2 + limit))


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
