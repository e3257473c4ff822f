"""Change points: the runs at which the level of a figure changes by more than its noise.

The runs are divided into levels so that the squared deviations from the levels, plus a price for each change, are least
(optimal partitioning, as in PELT of ruptures: exact, because a trend has few runs). The price follows from the noise:
a change must lower the sum by the square of the limit that one of the tested places of unchanged runs exceeds with the
probability CHANCE (Student's t as in Apache Otava, with Bonferroni's correction for the number of places). So no price
is chosen by hand, two changes that cancel out are found, and the noise is that by which runs are compared. Outliers
count for nothing. ``tests/results/figures/test_change_points.py`` simulates it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate, pairwise

from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.statistics import student_limit

FEWEST = noise.MANY
"""The minimum number of runs: with fewer an outlier and a change look the same."""
SHORTEST = 3
"""The minimum number of runs of a level, because one or two runs may be outliers."""


def find(values: Sequence[float]) -> list[int]:
    """Return the places at which a new level begins, in order."""
    away = set(noise.far_from_neighbours(values))
    places = [place for place in range(len(values)) if place not in away]
    kept = [values[place] for place in places]
    deviation = noise.spread(values)
    if len(kept) < FEWEST or deviation is None:
        return []
    limit = student_limit(noise.CHANCE / (2 * len(kept)), noise.freedom(len(kept)))
    return [places[start] for start in _large(_divided(kept, (limit * deviation) ** 2), kept)]


def levels(count: int, changes: Sequence[int]) -> list[range]:
    """Return the places of each level."""
    return [range(start, end) for start, end in zip([0, *changes], [*changes, count], strict=True)]


def _divided(values: Sequence[float], price: float) -> list[int]:
    """Return the starts of the levels but the first, for which the sum of squares and prices is least."""
    middle = statistics.fmean(values)  # keeps the sums small
    sums = [0.0, *accumulate(value - middle for value in values)]
    squares = [0.0, *accumulate((value - middle) ** 2 for value in values)]
    least, last = [-price], [0]
    for end in range(1, len(values) + 1):
        costs = []
        for start in range(end - SHORTEST + 1):
            deviations = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)
            costs.append((least[start] + price + deviations, start))
        cost, start = min(costs, default=(float("inf"), 0))
        least.append(cost)
        last.append(start)
    starts, end = [], last[-1]
    while end:
        starts.append(end)
        end = last[end]
    return starts[::-1]


def _large(starts: list[int], values: Sequence[float]) -> list[int]:
    """Leave out changes that are smaller than a change that counts, the smallest first."""
    while starts:
        means = [statistics.fmean(values[place] for place in level) for level in levels(len(values), starts)]
        sizes = [abs(new - old) / abs(old) if old else 1.0 for old, new in pairwise(means)]
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[smallest] >= noise.LEAST:
            break
        del starts[smallest]
    return starts
