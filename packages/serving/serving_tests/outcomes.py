"""Outcomes of serving cases for tests, from the points that a rank logged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flagperf_driver.node.logs.points import MeasuredPoint
from pytest_flagperf.results import Outcome
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Target
from pytest_flagperf.stored.plan import MeasuredFigure
from pytest_flagperf_serving.suite import FIGURES


def outcome_of(points: Iterable[MeasuredPoint], **more: Any) -> Outcome:
    points = tuple(points)
    figures = tuple(
        MeasuredFigure(name, **{key: value for key, value in vars(one).items() if key not in ("original", "peak")})
        for name, one in FIGURES.items()
    )
    values = [
        MetricValue(figure.name, point.figures[figure.name], figure.unit, figure.direction, "")
        for figure in figures
        if (point := point_of(figure, points)) is not None
    ]
    settings: dict[str, Any] = {
        "case": "m:engine:CPU:1:1:1", "model": "m", "framework": "engine", "hardware": "CPU", "nnodes": 1, "nproc": 1,
        "vendor": "cpu", "round": 1, "seed": 1, "scale": "small", "synthetic": False, "throughput_only": False,
        "sample_unit": "", "state": "finished", "target": Target("output_rate", "higher", "tokens/s", None),
        "kind": "serving", "figures": figures, "metrics": tuple(values), "points": points, "hosts": ("h1",),
    }  # fmt: skip
    return Outcome(**{**settings, **more})
