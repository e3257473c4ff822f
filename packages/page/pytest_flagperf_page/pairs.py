"""The figures of each pair of ranks on the page, as a matrix: who sends in the rows, who receives in the columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from flagperf_driver.node.logs.points import MeasuredPoint
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.plan import WORST, MeasuredFigure

from .html import Number, table

MOST_RANKS = 64
"""The largest number of rows and columns of a matrix."""
_Pair = tuple[int, int]


def pair_of(point: MeasuredPoint) -> _Pair | None:
    """Return the sending and the receiving rank of a point; None if it was not measured between two ranks."""
    source, target = point.values.get("source"), point.values.get("target")
    return (source, target) if isinstance(source, int) and isinstance(target, int) else None


def html(rounds: Sequence[Outcome]) -> str:
    """Return the matrices of the first round that has pairs; empty without."""
    return next(filter(None, ("".join(_matrices(outcome)) for outcome in rounds)), "")


def _matrices(outcome: Outcome) -> Iterator[str]:
    for figure in outcome.figures:
        points = {
            pair: point
            for point in outcome.points
            if figure.name in point.figures and (pair := pair_of(point)) is not None
        }
        # The other figures of pairs are each of one pair.
        if figure.pick == WORST and points:
            yield f"<h3>{escape(figure.name)}: each pair of ranks, round {outcome.round}</h3>{_matrix(figure, points)}"


def _matrix(figure: MeasuredFigure, points: Mapping[_Pair, MeasuredPoint]) -> str:
    sign = 1 if figure.direction == "higher" else -1
    values = {pair: sign * point.figures[figure.name] for pair, point in points.items()}
    worst_first = sorted(values, key=lambda pair: (math.isfinite(values[pair]), values[pair]))
    of_all = [*dict.fromkeys(rank for pair in worst_first for rank in pair)]
    ranks = sorted(of_all[:MOST_RANKS])
    worst = point_of(figure, points.values())

    def cell(pair: _Pair) -> Number:
        point = points.get(pair)
        mark = "worst: " if point is worst else ""
        return Number("" if point is None else mark + quantity(point.figures[figure.name], figure.unit))

    rows = [(f"from {source}", *(cell((source, target)) for target in ranks)) for source in ranks]
    left = f"<p>{MOST_RANKS} of {len(of_all):,} ranks: those of the worst pairs</p>" if len(of_all) > MOST_RANKS else ""
    return left + table(("rank", *(f"to {target}" for target in ranks)), rows)
