"""What the times of a point's windows say: their middle, how certain it is, and whether the device changed."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from typing import Sequence

FEWEST = 6
"""With fewer windows the middle has no interval: all of them lie on one side of it in 1 of 32 cases."""
SUSPECTED = 1 / 8
"""The share of windows at a second speed from which a point is measured longer, before ``sides`` judges it."""
APART = 0.03
"""Two times that differ by less are one speed."""
_EXPLAINED = 0.85
"""The share of the variance that a cut into two groups must explain; the best cut of a normal distribution explains
64 %, of a uniform one 75 %."""


def interval(times: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of the median, as a share of the median; infinite for few windows.

    The interval is made of order statistics, so it assumes no distribution. A disturbance that lasts for several
    windows is one observation: the more neighbours are alike, the fewer windows count.
    """
    count = len(times)
    if count < FEWEST:
        return math.inf
    ordered = sorted(times)
    reach = 0.98 / math.sqrt(
        max(FEWEST, count * _independent_share(times))
    )  # 1.96 standard deviations of a share of 1/2
    low = max(0, math.floor((0.5 - reach) * count))
    high = min(count - 1, math.ceil((0.5 + reach) * count))
    return (ordered[high] - ordered[low]) / 2 / statistics.median(ordered)


def settled(times: Sequence[float], share: float) -> bool:
    """Return True if the interval is at most ``share``, and the medians of both halves differ by at most as much.

    The interval alone would accept a slow trend: while the trend is short, all windows are alike.
    """
    half = len(times) // 2
    if half == 0 or interval(times) > share:
        return False
    return abs(statistics.median(times[half:]) / statistics.median(times[:half]) - 1) <= share


def best(times: Sequence[float]) -> float:
    """Return the median of the fastest tenth."""
    return statistics.median(sorted(times)[: max(1, len(times) // 10)])


def drift(times: Sequence[float]) -> float | None:
    """Return by which share the time was longer in the last third than in the first; None without a drift.

    In a drift nine tenths of one third are faster than nine tenths of the other, and the middle third lies between
    them. A disturbance in the middle or at one end is not a drift.
    """
    third = len(times) // 3
    if third < 4:
        return None
    parts = [sorted(part) for part in (times[:third], times[third:-third], times[-third:])]
    first, middle, last = (statistics.median(part) for part in parts)
    change = last / first - 1
    faster, slower = (parts[0], parts[2]) if change > 0 else (parts[2], parts[0])
    apart = _quantile(faster, 0.9) <= _quantile(slower, 0.1)
    slack = abs(last - first) / 10
    between = min(first, last) - slack <= middle <= max(first, last) + slack
    return change if abs(change) >= APART and apart and between else None


def sides(times: Sequence[float], least: float = 1 / 4) -> tuple[float, float] | None:
    """Return the two times of a device that works at two speeds; None if one time describes the device.

    Each of both groups has at least this share of the windows; a twentieth at either end is not looked at.
    """
    outermost = len(times) // 20
    ordered = sorted(times)[outermost : len(times) - outermost]
    count = len(ordered)
    if count < 20:
        return None
    mean = statistics.fmean(ordered)
    most, cut, below = 0.0, 0, 0.0
    for size, time in enumerate(ordered[:-1], 1):
        below += time - mean
        explained = below * below * count / (size * (count - size))  # the sum of squares between both groups
        if explained > most:
            most, cut = explained, size
    fast, slow = ordered[:cut], ordered[cut:]
    if min(len(fast), len(slow)) < count * least or most < _EXPLAINED * sum((time - mean) ** 2 for time in ordered):
        return None
    both = statistics.median(fast), statistics.median(slow)
    return both if both[1] - both[0] >= APART * both[0] else None


def _independent_share(times: Sequence[float]) -> float:
    """Return the share of the windows that count as independent, by the rank correlation of neighbours."""
    ordered = sorted(times)
    ranks = {time: bisect_left(ordered, time) + bisect_right(ordered, time) for time in set(times)}
    deviations = [ranks[time] - len(times) for time in times]  # twice the mean rank of equal times, less its mean
    squares = sum(deviation * deviation for deviation in deviations)
    if not squares:
        return 1.0
    alike = max(0.0, sum(before * after for before, after in zip(deviations, deviations[1:])) / squares)
    return (1 - alike) / (1 + alike)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
