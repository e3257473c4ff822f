"""A metric of one round, with its unit, its better direction and how it was measured, and those of all kinds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.node.logs.ranklog import RankLog, whole
from flagperf_driver.perflog import number
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.stored.plan import StoredPlan

TIMES = {
    "e2e_time": "from the start of the process to FINISHED",
    "init_time": "from the start of the process to TRAIN_START, the untrained model's evaluation included",
    "raw_train_time": "from TRAIN_START to TRAIN_END, evaluations included",
    "train_no_eval_time": "raw_train_time without evaluations",
    "pure_training_computing_time": "train_no_eval_time without waiting for input",
    "eval_time": "all evaluations",
    "compile_time": "compiling the model",
    "save_pause": "the mean time that a checkpoint stopped the training",
    "save_write_time": "the mean time to write a checkpoint while the training continued",
}
OF_STEPS = ("pure_training_computing_time", "compile_time")
"""Sums over steps, measured by the clock of the steps."""


@dataclass(frozen=True)
class MetricValue:
    """One metric of a round; ``direction`` is "higher", "lower" or None; ``value`` may be NaN."""

    name: str
    value: float
    unit: str
    direction: str | None
    how: str
    samples: int | None = None
    """The number of measurements, if the value is computed from several."""
    warmup: int | None = None
    """The number of warm-up steps that were left out, if the metric is about steps."""


def of_points(plan: StoredPlan, points: Sequence[MeasuredPoint]) -> Iterator[MetricValue]:
    """Yield the declared figures of a measurement, each of one point of all ranks together."""
    for figure in plan.figures:
        point = point_of(figure, points)
        if point is not None:
            among = sum(figure.name in other.figures for other in points)
            which = f"the {figure.pick} of {among:,} points" if among > 1 else "the only point"
            clock = f", {point.clock}" if point.clock else ""
            ranks = f", of the worst of {plan.cards:,} ranks" if plan.cards > 1 else ""
            how, value = f"{point.name}, {which}{ranks}{clock}", point.figures[figure.name]
            yield MetricValue(figure.name, value, figure.unit, figure.direction, how, point.windows or None)


def times(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    """Yield the times that a rank reported at its end."""
    for name, how in TIMES.items():
        clock = timing(end) if name in OF_STEPS else "host clock"
        count = _checkpoints(end) if name.startswith("save_") else None
        yield from reported(name, end.get(name), "s", "lower", f"{clock} of rank {rank}, {how}", count)


def _checkpoints(end: Mapping[str, Any]) -> int | None:
    """Return how many checkpoints stopped the training; None if a time is missing."""
    pause, all_pauses = number(end.get("save_pause")), number(end.get("save_time"))
    return as_count(all_pauses / pause + 0.5) if pause > 0 else None


def timing(end: Mapping[str, Any]) -> str:
    """The name of the clock by which steps were measured."""
    return str(end.get("timing") or "unknown clock")


def token_share(end: Mapping[str, Any]) -> float:
    """Return the share of tokens without padding."""
    return 1.0 if end.get("token_share") is None else number(end.get("token_share"))


def step_flops(plan: StoredPlan, end: Mapping[str, Any]) -> float | None:
    """Return the model's FLOPs of one card in a measured step, without padding; None if they are unknown."""
    samples, steps = number(end.get("measured_samples")), number(end.get("measured_steps"))
    if not plan.flops_per_sample or not steps > 0:
        return None
    flops = plan.flops_per_sample * token_share(end) * samples / steps / plan.cards
    return flops if math.isfinite(flops) else None


def memory(plan: StoredPlan, logs: Iterable[RankLog]) -> Iterator[MetricValue]:
    """Yield the peak memory of all ranks."""
    peaks = [number((log.finished or {}).get("peak_memory_bytes")) for log in logs]
    peaks = [peak for peak in peaks if math.isfinite(peak)]
    if peaks:
        how = f"the most that tensors held at once, the largest of {len(peaks):,} ranks"
        if plan.memory:
            parts = ", ".join(f"{part} {quantity(size, 'bytes')}" for part, size in plan.memory.items())
            how += f"; the estimate before the run: {quantity(sum(plan.memory.values()), 'bytes')} ({parts})"
        yield MetricValue("peak_memory", max(peaks), "bytes", "lower", how, len(peaks))


def reported(
    name: str,
    value: object,
    unit: str,
    direction: str | None,
    how: str,
    samples: int | None = None,
    warmup: int | None = None,
) -> Iterator[MetricValue]:
    """Yield the metric if it was reported."""
    if value is not None:
        yield MetricValue(name, number(value), unit, direction, how, samples, warmup)


def as_count(value: object) -> int | None:
    """Return a reported count; None if it is not one."""
    return whole(value) if math.isfinite(number(value)) else None
