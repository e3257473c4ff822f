"""Charts of the size of a word, for the table of cases: a curve with its target, drawn without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pytest_flagperf.report.charts import Chart, ChartLine
from pytest_flagperf.results.figures.units import quantity

POINTS = 24
_LEAST_SPAN = 0.1
"""The least height of the value axis as a share of the highest value, so that noise looks small."""
_WIDTH, _HEIGHT, _MARGIN = 96, 28, 3
_MOST_LINES = 3


def small(chart: Chart | None, *, apart: bool = False) -> str:
    """Return the chart as a picture without axes, whose label has its ends; empty without a chart.

    ``apart``: each line has a colour of its own.
    """
    if chart is None:
        return ""
    lines = [_finite(line, chart.kind) for line in chart.lines if line.drawable and not line.dashed][:_MOST_LINES]
    values = [y for line in lines for _, y in line]
    levels = [level.value for level in chart.levels if math.isfinite(level.value)]
    xs = [x for line in lines for x, _ in line]
    if not xs:
        return ""
    low, high = min(values + levels), max(values + levels)
    low = min(low if chart.floor is None else chart.floor, high - _LEAST_SPAN * abs(high))
    drawn = [_polyline([_place(point, (min(xs), max(xs)), (low, high)) for point in line]) for line in lines]
    targets = [_place((max(xs), level), (min(xs), max(xs)), (low, high))[1] for level in levels]
    marks = "".join(f'<path d="M0 {y:.1f}H{_WIDTH}"/>' for y in targets)
    changes = [
        _place((band.start, low), (min(xs), max(xs)), (low, high))[0] for band in chart.bands if band.start == band.end
    ]
    marks += "".join(f'<path class="change" d="M{x:.1f} 0V{_HEIGHT}"/>' for x in changes)
    label = f"{chart.title}: from {quantity(values[0])} to {quantity(lines[0][-1][1])}"
    return (
        f'<svg class="small{" apart" if apart else ""}" role="img" aria-label="{escape(label)}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">{marks}{"".join(drawn)}</svg>'
    )


def _finite(line: ChartLine, kind: str) -> list[tuple[float, float]]:
    """Return the finite points; of sizes, the power."""
    pairs = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    return [(math.log2(x), y) for x, y in pairs if x > 0] if kind == "size" else pairs


def _place(point: tuple[float, float], across: tuple[float, float], up: tuple[float, float]) -> tuple[float, float]:
    (x, y), (left, right), (low, high) = point, across, up
    wide, share = right - left or 1.0, (y - low) / (high - low or 1.0)
    return (_MARGIN + (x - left) / wide * (_WIDTH - 2 * _MARGIN), _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN))


def _polyline(places: Sequence[tuple[float, float]]) -> str:
    """Return the line with a dot at its end; two points are no curve and have a dot each."""
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in places)
    line, dotted = (f'<polyline points="{points}"/>', places[-1:]) if len(places) > 2 else ("", places)
    dots = "".join(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="2.5"/>' for x, y in dotted)
    return f"<g>{line}{dots}</g>"
