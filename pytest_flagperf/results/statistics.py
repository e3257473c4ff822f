"""Over rounds: the middle, the mean and the spread of those values that are numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """``stdev`` is the sample's, None below two values; everything is None without any value."""

    count: int
    median: float | None
    mean: float | None
    stdev: float | None


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are numbers, in their order."""
    return [value for value in values if value is not None and math.isfinite(value)]


def summarize(values: Iterable[float | None]) -> Summary:
    numbers = finite(values)
    if not numbers:
        return Summary(0, None, None, None)
    return Summary(
        count=len(numbers),
        median=statistics.median(numbers),
        mean=statistics.fmean(numbers),
        stdev=statistics.stdev(numbers) if len(numbers) > 1 else None,
    )
