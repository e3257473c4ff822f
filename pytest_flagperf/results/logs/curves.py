"""Curves over samples: interpolation at common points, and the distance between curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flagperf_driver.target import Target

Points = Sequence[tuple[float, float]]
"""Samples and value, in order; ``finite`` removes NaN and infinite values."""


@dataclass(frozen=True)
class CurveDistance:
    """The distance of two curves as shares: ``deviation`` is signed, ``area`` is the area between them."""

    deviation: float
    area: float


def finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in points if math.isfinite(point[1])]


def crossing(evaluations: Sequence[tuple[float, Mapping[str, float]]], target: Target) -> float | None:
    """The samples at which all targets were reached, interpolated between that evaluation and the one before.

    An evaluation is its samples and its finite metrics.
    """
    if evaluations and target.reached_by(evaluations[0][1]):
        return evaluations[0][0]
    targets = {name: value for name, value in target.values.items() if value is not None}
    for (start, before), (end, metrics) in pairwise(evaluations):
        if target.reached_by(metrics):
            missed = target.missed_by(before)
            shares = ((targets[name] - before[name]) / (metrics[name] - before[name]) for name in missed)
            return start + (end - start) * max(shares)
    return None


def at(points: Points, samples: float) -> float | None:
    """The interpolated value at this number of samples; None outside of the points."""
    for (start, before), (end, after) in pairwise(points):
        if start <= samples <= end:
            return before + (after - before) * (samples - start) / (end - start) if end > start else after
    return None


def means(points: Points, ends: Sequence[float]) -> list[float]:
    """The mean value between each two ends, the first from 0; a point's value holds since the point before."""
    values = []
    for start, end in pairwise([0.0, *ends]):
        parts = [
            (min(last, end) - max(first, start), value)
            for (first, _), (last, value) in pairwise([(0.0, 0.0), *points])
            if min(last, end) > max(first, start)
        ]
        covered = sum(width for width, _ in parts)
        values.append(sum(width * value for width, value in parts) / covered if covered else math.nan)
    return values


def thinned(places: Sequence[float], most: int) -> list[float]:
    """At most ``most`` of the places, evenly apart and with the last one."""
    if len(places) <= most:
        return list(places)
    return [places[math.ceil((number + 1) * len(places) / most) - 1] for number in range(most)]


def distance(values: Sequence[float], middle: Sequence[float], ends: Sequence[float]) -> CurveDistance:
    """The distance of ``values`` from ``middle``; each value counts by the samples that it covers."""
    widths = [end - start for start, end in pairwise([0.0, *ends])]
    total = sum(width * abs(mean) for width, mean in zip(widths, middle, strict=True))
    parts = [width * (value - mean) for width, value, mean in zip(widths, values, middle, strict=True)]
    return CurveDistance(sum(parts) / total, sum(map(abs, parts)) / total)


def middle(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*rounds, strict=True)]


def distances_among(rounds: Sequence[Sequence[float]], ends: Sequence[float]) -> list[CurveDistance]:
    """The distance of each round from the mean of all others."""
    others = [middle([*rounds[:number], *rounds[number + 1 :]]) for number in range(len(rounds))]
    return [distance(one, rest, ends) for one, rest in zip(rounds, others, strict=True)]
