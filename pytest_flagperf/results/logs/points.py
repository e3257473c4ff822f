"""Combine the points of a measurement over all ranks, and find the point whose value is the case's figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.perflog import number
from pytest_flagperf.stored.plan import LAST, WORST, MeasuredFigure


def of_ranks(ranks: Iterable[Sequence[MeasuredPoint]], figures: Sequence[MeasuredFigure]) -> tuple[MeasuredPoint, ...]:
    """Return the points in the order of the first rank that has them, each with the figures of the worst rank."""
    by_name: dict[str, MeasuredPoint] = {}
    declared = {figure.name: figure for figure in figures}
    for points in ranks:
        for point in points:
            known = by_name.get(point.name)
            by_name[point.name] = point if known is None else _joined(known, point, declared)
    return tuple(by_name.values())


def _joined(first: MeasuredPoint, second: MeasuredPoint, declared: Mapping[str, MeasuredFigure]) -> MeasuredPoint:
    """Return a point of two ranks: the slower one, with the worst figure of both; NaN is the worst.

    A figure that only one rank has is NaN, or missing if it may be missing.
    """
    slower = second if (second.seconds or 0.0) > (first.seconds or 0.0) else first
    figures = {}
    for name in dict.fromkeys([*first.figures, *second.figures]):
        figure = declared.get(name)
        if figure is not None and not figure.is_required and not (name in first.figures and name in second.figures):
            continue
        pair = [point.figures.get(name, math.nan) for point in (first, second)]
        is_lower = figure is not None and figure.direction == "lower"
        figures[name] = math.nan if any(map(math.isnan, pair)) else (max if is_lower else min)(pair)
    turns = {} if slower.together else {**first.turns, **second.turns}
    return replace(slower, figures=figures, turns=turns)


def point_of(figure: MeasuredFigure, points: Iterable[MeasuredPoint]) -> MeasuredPoint | None:
    """Return the point that is the case's figure, by the rule that the suite declares; None without a point.

    The last point is one of those that have the value that the figure is drawn over.
    """
    having = [point for point in points if figure.name in point.figures]
    if figure.pick == LAST:
        varied = [point for point in having if math.isfinite(_over(figure, point))]
        return max(varied, key=lambda point: _over(figure, point), default=None)
    if not having:
        return None
    bad = next((point for point in having if not math.isfinite(point.figures[figure.name])), None)
    if bad is not None:
        return bad
    highest = (figure.direction == "lower") == (figure.pick == WORST)
    return (max if highest else min)(having, key=lambda point: point.figures[figure.name])


def _over(figure: MeasuredFigure, point: MeasuredPoint) -> float:
    return number(point.values.get(figure.over))
