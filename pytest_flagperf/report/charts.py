"""Charts as data: lines over one axis. The package page draws them (packages/page)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome

MAX_POINTS = 300
"""The maximum number of points of a line: more are not visible and make the page large."""


@dataclass(frozen=True)
class ChartLine:
    """A line with its name in the legend; values that are not finite are gaps."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    labels: tuple[str, ...] = ()
    """Texts beside its points."""

    @property
    def drawable(self) -> bool:
        return any(map(math.isfinite, self.y))


@dataclass(frozen=True)
class HorizontalLine:
    """A horizontal line, such as a target."""

    name: str
    value: float


@dataclass(frozen=True)
class Band:
    """A shaded part of the axis; each name has one colour. With ``low`` and ``high`` it is as high as these values."""

    name: str
    start: float
    end: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    """A chart; ``kind`` is the unit of the axis: "count" (steps, cards), "time" (seconds) or "size" (in powers)."""

    title: str
    x: str
    y: str
    lines: tuple[ChartLine, ...]
    kind: str = "count"
    levels: tuple[HorizontalLine, ...] = ()
    bands: tuple[Band, ...] = ()
    floor: float | None = None
    """The start of the value axis; None for below the lowest value."""
    summary: str = "median"
    """The value of a line that the legend shows while no point is selected: "last", "median" or "highest"."""
    note: str = ""
    names: tuple[str, ...] = ()
    """The names of the positions 1, 2, ... on the axis."""

    @property
    def drawable(self) -> bool:
        return any(line.drawable for line in self.lines)


# -- of rounds -----------------------------------------------------------------------------------------------


def metric(outcomes: Sequence[Outcome], points: int = MAX_POINTS, name: str = "") -> Chart | None:
    """Return a metric over steps with its target, by default the suite's; the first value is of the untrained model."""
    if not outcomes:
        return None
    target = outcomes[0].target
    name = name or target.name
    value = target.values.get(name)
    lines = [line_of(name_of(outcome), _evaluated(outcome, name), points) for outcome in outcomes]
    levels: tuple[HorizontalLine, ...] = ()
    if value is not None and math.isfinite(value):
        levels = (HorizontalLine(f"target {quantity(value, target.unit)}", value),)
    chart = make_chart(f"{name} and its target", "step", name, lines)
    return chart and replace(chart, levels=levels, summary="last")


def throughput(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Return the throughput of all cards over time, one line for each round."""
    if not outcomes:
        return None
    lines = [
        line_of(name_of(outcome), [(step.time, step.throughput) for step in outcome.steps], points)
        for outcome in outcomes
    ]
    chart = make_chart("Throughput, all cards", "time since the start of the training", outcomes[0].rate_unit, lines)
    return chart and replace(chart, kind="time", floor=0.0)


def _evaluated(outcome: Outcome, name: str) -> list[tuple[float, float]]:
    evaluations = [outcome.untrained] if outcome.untrained else []
    evaluations += outcome.evaluations
    return [(item.step, item.metrics.get(name, math.nan)) for item in evaluations]


def name_of(outcome: Outcome) -> str:
    """Return the name of a round's line."""
    return f"round {outcome.round}"


def make_chart(title: str, x: str, y: str, lines: Iterable[ChartLine]) -> Chart | None:
    drawable = tuple(line for line in lines if line.drawable)
    return Chart(title, x, y, drawable) if drawable else None


def line_of(name: str, pairs: Sequence[tuple[float, float]], points: int) -> ChartLine:
    """Return a line with evenly spaced points and the last point; points without a finite position are dropped."""
    pairs = [(x, y) for x, y in pairs if math.isfinite(x)]
    stride = max(1, math.ceil(len(pairs) / points))
    kept = [*pairs[::stride], *(pairs[-1:] if (len(pairs) - 1) % stride else [])]
    return ChartLine(name, [x for x, _ in kept], [y for _, y in kept])
