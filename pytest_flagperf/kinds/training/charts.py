"""The charts of a training: loss, metrics with their targets, throughput, and figures that some trainings have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flagperf_driver.logged_step import CHARTED
from pytest_flagperf.report.charts import (
    MAX_POINTS,
    Chart,
    HorizontalLine,
    line_of,
    make_chart,
    metric,
    name_of,
    throughput,
)
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome


def charts(outcomes: Sequence[Outcome], points: int) -> Iterator[Chart | None]:
    """Yield the charts of a training's rounds."""
    yield loss(outcomes, points)
    for name in outcomes[0].target.values:
        yield metric(outcomes, points, name)
    yield throughput(outcomes, points)
    for name in CHARTED:
        yield step_figure(name, outcomes, points)


def loss(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Return the training loss over steps, one line for each round."""
    lines = [
        line_of(name_of(outcome), [(step.step, step.loss) for step in outcome.steps], points) for outcome in outcomes
    ]
    chart = make_chart("Training loss", "step", "loss", lines)
    return chart and replace(chart, summary="last")


def step_figure(name: str, outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Return a figure of the table ``CHARTED`` over steps, with its limit; nothing for trainings without it."""
    figure = CHARTED[name]
    lines = []
    for outcome in outcomes:
        values = [(step.step, getattr(step, name)) for step in outcome.steps]
        lines.append(line_of(name_of(outcome), [pair for pair in values if pair[1] is not None], points))
    limit = outcomes[0].limits.get(f"max_{name}") if outcomes else None
    levels = () if limit is None else (HorizontalLine(f"limit {quantity(limit, figure.unit)}", limit),)
    chart = make_chart(figure.chart, "step", figure.axis, lines)
    return chart and replace(chart, levels=levels, summary="last")
