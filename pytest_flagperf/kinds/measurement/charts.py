"""The charts of a measurement: figures over the values of their points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from flagperf_driver.perflog import number
from pytest_flagperf.report.charts import Chart, ChartLine, HorizontalLine, make_chart
from pytest_flagperf.results.figures.units import count, scale_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.plan import MeasuredFigure


def charts(outcomes: Sequence[Outcome]) -> Iterator[Chart | None]:
    """Yield a chart for each kind of curve: the figures of the same unit over the same value, medians over rounds."""
    figures = outcomes[0].figures if outcomes else ()
    groups: dict[tuple[str, str], list[MeasuredFigure]] = {}
    for figure in figures:
        if figure.over:
            groups.setdefault((figure.unit, figure.over), []).append(figure)
    for (unit, over), group in groups.items():
        yield _curves(outcomes, unit, over, group)


def _curves(outcomes: Sequence[Outcome], unit: str, over: str, figures: Sequence[MeasuredFigure]) -> Chart | None:
    curves = {figure.name: _curve(outcomes, figure) for figure in figures}
    divisor, shown = scale_of(max((y for pairs in curves.values() for _, y in pairs), default=0.0), unit)
    lines = [
        ChartLine(name, [x for x, _ in pairs], [y / divisor for _, y in pairs])
        for name, pairs in curves.items()
        if len(pairs) > 1
    ]
    names = [line.name for line in lines]
    title = ", ".join(names) if len(names) < 4 else count(len(names), "figure")
    chart = make_chart(f"{title} over {over}", over, shown, lines)
    peaks = {figure.peak for figure in figures if curves[figure.name]} - {None}
    levels = (
        tuple(HorizontalLine("the chip's peak", peak / divisor) for peak in peaks if peak) if len(peaks) == 1 else ()
    )
    return chart and replace(chart, kind="size", floor=0.0, levels=levels, summary="highest")


def _curve(outcomes: Sequence[Outcome], figure: MeasuredFigure) -> list[tuple[float, float]]:
    """Return the points of a figure in order, each the median over rounds and over points of the same value."""
    values: dict[float, list[float]] = {}
    for outcome in outcomes:
        for point in outcome.points:
            at, value = number(point.values.get(figure.over)), point.figures.get(figure.name, math.nan)
            if outcome.ok and at > 0 and math.isfinite(value):
                values.setdefault(at, []).append(value)
    return [(at, median(values[at])) for at in sorted(values)]
