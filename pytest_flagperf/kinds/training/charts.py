"""The charts of a training: loss, metrics with their targets, throughput, and the load of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_flagperf.report.page.charts import (
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
    yield expert_load(outcomes, points)


def loss(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Return the training loss over steps, one line for each round."""
    lines = [
        line_of(name_of(outcome), [(step.step, step.loss) for step in outcome.steps], points) for outcome in outcomes
    ]
    chart = make_chart("Training loss", "step", "loss", lines)
    return chart and replace(chart, summary="last")


def expert_load(outcomes: Sequence[Outcome], points: int = MAX_POINTS) -> Chart | None:
    """Return how many times the mean an expert got at most, over steps, with its limit; nothing without experts."""
    lines = [
        line_of(name_of(outcome), [(step.step, step.expert_load) for step in outcome.steps if step.expert_load], points)
        for outcome in outcomes
    ]
    limit = outcomes[0].limits.get("max_expert_load") if outcomes else None
    levels = () if limit is None else (HorizontalLine(f"limit {quantity(limit, 'x')}", limit),)
    chart = make_chart("Largest load of an expert", "step", "tokens / mean", lines)
    return chart and replace(chart, levels=levels, summary="last")
