"""Curves over samples: brought to the same places, and how far one lies from others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_flagperf.results.logs.ranklog import Target

Points = Sequence[tuple[float, float]]
"""Samples and value, in order; a value that is no number is left out by ``finite``."""


@dataclass(frozen=True)
class CurveDistance:
    """Both are shares: ``deviation`` says how far above on the whole, ``area`` how much lies between, either way."""

    deviation: float
    area: float


def finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in points if math.isfinite(point[1])]


def crossing(points: Points, target: Target) -> float | None:
    """After how many samples the target was reached: on the line to the first point there from the one before it."""
    if points and target.reached_by(points[0][1]):
        return points[0][0]
    for (start, before), (end, value) in pairwise(points):
        if target.reached_by(value) and target.value is not None:
            return start + (end - start) * (target.value - before) / (value - before)
    return None


def at(points: Points, samples: float) -> float | None:
    """The value there, on the line between the points beside it; None outside of them."""
    for (start, before), (end, after) in pairwise(points):
        if start <= samples <= end:
            return before + (after - before) * (samples - start) / (end - start) if end > start else after
    return None


def means(points: Points, ends: Sequence[float]) -> list[float]:
    """The mean from each end to the next, the first from 0: a point's value holds since the point before it."""
    found = []
    for start, end in pairwise([0.0, *ends]):
        parts = [
            (min(last, end) - max(first, start), value)
            for (first, _), (last, value) in pairwise([(0.0, 0.0), *points])
            if min(last, end) > max(first, start)
        ]
        covered = sum(width for width, _ in parts)
        found.append(sum(width * value for width, value in parts) / covered if covered else math.nan)
    return found


def thinned(places: Sequence[float], most: int) -> list[float]:
    """So many of them at most, evenly apart, the last one always."""
    if len(places) <= most:
        return list(places)
    return [places[math.ceil((number + 1) * len(places) / most) - 1] for number in range(most)]


def distance(values: Sequence[float], middle: Sequence[float], ends: Sequence[float]) -> CurveDistance:
    """How far ``values`` lie from ``middle``; each counts by the samples that it is the mean of."""
    widths = [end - start for start, end in pairwise([0.0, *ends])]
    whole = sum(width * abs(each) for width, each in zip(widths, middle, strict=True))
    parts = [width * (value - each) for width, value, each in zip(widths, values, middle, strict=True)]
    return CurveDistance(sum(parts) / whole, sum(map(abs, parts)) / whole)


def middle(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*rounds, strict=True)]


def distances_among(rounds: Sequence[Sequence[float]], ends: Sequence[float]) -> list[CurveDistance]:
    """How far each lies from all the others together: what rounds of one kind differ by."""
    others = [middle([*rounds[:number], *rounds[number + 1 :]]) for number in range(len(rounds))]
    return [distance(one, rest, ends) for one, rest in zip(rounds, others, strict=True)]
