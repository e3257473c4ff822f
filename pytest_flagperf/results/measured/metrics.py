"""The metrics of one round, each with its unit, its better direction and how it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flagperf_driver.logged_step import STEP_FIGURES
from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.node.logs.ranklog import RankLog, whole
from flagperf_driver.perflog import number
from flagperf_driver.target import Target
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.points import of_ranks, point_of
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


def of_round(plan: StoredPlan, logs: Iterable[RankLog], target: Target, starts: int = 1) -> tuple[MetricValue, ...]:
    """Return the metrics that the ranks reported, and those computed from them.

    With several ``starts`` the times of the first log's curve are since TRAIN_START of the first one.
    """
    logs = list(logs)
    first = next((log for log in logs if log.finished is not None), None)
    metrics: list[MetricValue] = []
    if first is not None and first.finished is not None:
        end = first.finished
        metrics = [
            *_times(end, first.rank),
            *_throughputs(plan, end, first.rank),
            *_step_times(end, first.rank),
        ]
        metrics += [
            *_of_last_step(end),
            *_shares(plan, end),
            *_memory(plan, logs),
            *_final(end, first.rank),
            *_factor(end, first.rank),
        ]
    return (
        *_measured_figures(plan, points_of(plan, logs)),
        *_to_target(plan, logs, starts),
        *metrics,
        *_quality(logs, target),
    )


def points_of(plan: StoredPlan, logs: Iterable[RankLog]) -> tuple[MeasuredPoint, ...]:
    """Return the points of a measurement, of all ranks together."""
    return of_ranks((log.points for log in logs), plan.figures)


def _measured_figures(plan: StoredPlan, points: Sequence[MeasuredPoint]) -> Iterator[MetricValue]:
    """Yield the declared figures of a measurement, each of one of its points."""
    for figure in plan.figures:
        point = point_of(figure, points)
        if point is not None:
            among = sum(figure.name in other.figures for other in points)
            which = f"the {figure.pick} of {among:,} points" if among > 1 else "the only point"
            clock = f", {point.clock}" if point.clock else ""
            ranks = f", of the worst of {plan.cards:,} ranks" if plan.cards > 1 else ""
            how = f"{point.name}, {which}{ranks}{clock}"
            value = point.figures[figure.name]
            yield MetricValue(figure.name, value, figure.unit, figure.direction, how, point.windows or None)


def _times(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    for name, how in TIMES.items():
        clock = _timing(end) if name in OF_STEPS else "host clock"
        yield from _metric(name, end.get(name), "s", "lower", f"{clock} of rank {rank}, {how}")


def _throughputs(plan: StoredPlan, end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    unit = f"{plan.sample_unit or 'samples'}/s"
    clock = f"host clock of rank {rank}"
    samples, steps = f"{whole(end.get('samples')):,} samples of all cards", _count(end.get("steps"))
    yield from _metric("p_whole", end.get("p_whole"), unit, "higher", f"{samples} over raw_train_time, {clock}", steps)
    how = f"{samples} over train_no_eval_time, {clock}"
    yield from _metric("p_train", end.get("p_train"), unit, "higher", how, steps)
    how = f"{_window(end)}, evaluation and input waiting left out"
    yield from _metric("p_core", end.get("p_core"), unit, "higher", how, *_measured(end))


def _window(end: Mapping[str, Any]) -> str:
    measured, warmup = whole(end.get("measured_steps")), whole(end.get("warmup_steps"))
    return f"{_timing(end)} over {measured:,} steps after {warmup:,} of warm-up"


def _timing(end: Mapping[str, Any]) -> str:
    """The name of the clock by which steps were measured."""
    return str(end.get("timing") or "unknown clock")


def _measured(end: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The numbers of measured steps and of warm-up steps before them."""
    return _count(end.get("measured_steps")), _count(end.get("warmup_steps"))


def _step_times(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    times = end.get("step_time")
    for name in ("mean", "p50", "p90", "p99"):
        value = times.get(name) if isinstance(times, dict) else None
        yield from _metric(f"step_time_{name}", value, "s", "lower", f"{_window(end)}, rank {rank}", *_measured(end))


def _shares(plan: StoredPlan, end: Mapping[str, Any]) -> Iterator[MetricValue]:
    waited, training = number(end.get("input_wait_time")), number(end.get("train_no_eval_time"))
    if end.get("input_wait_time") is not None and training > 0:
        how = f"{_timing(end)}, time that steps waited for input over train_no_eval_time"
        yield MetricValue("input_wait_share", waited / training, "share", "lower", how, _count(end.get("steps")), 0)
    peak = plan.peak_tflops or 0.0
    how = "padding over all computed tokens, all steps"
    yield from _metric("padding_share", end.get("padding_share"), "share", "lower", how, _count(end.get("steps")), 0)
    if end.get("p_core") is not None and plan.flops_per_sample and peak > 0:
        flops, tokens = plan.flops_per_sample, _token_share(end)
        without = "" if tokens == 1 else f" x {tokens:.1%} of the tokens, without padding,"
        how = f"{flops:.4g} FLOPs per sample{without} x p_core over {plan.cards} x {peak:g} TFLOPS of dense peak"
        value = flops * tokens * number(end.get("p_core")) / (plan.cards * peak * 1e12)
        yield MetricValue("mfu", value, "share", "higher", how, *_measured(end))


def _of_last_step(end: Mapping[str, Any]) -> Iterator[MetricValue]:
    for name, figure in STEP_FIGURES.items():
        yield from _metric(name, end.get(name), figure.unit, figure.direction, figure.how)


def _token_share(end: Mapping[str, Any]) -> float:
    return 1.0 if end.get("token_share") is None else number(end.get("token_share"))


def step_flops(plan: StoredPlan, end: Mapping[str, Any]) -> float | None:
    """Return the model's FLOPs of one card in a measured step, without padding; None if they are unknown."""
    samples, steps = number(end.get("measured_samples")), number(end.get("measured_steps"))
    if not plan.flops_per_sample or not steps > 0:
        return None
    flops = plan.flops_per_sample * _token_share(end) * samples / steps / plan.cards
    return flops if math.isfinite(flops) else None


def _memory(plan: StoredPlan, logs: Iterable[RankLog]) -> Iterator[MetricValue]:
    peaks = [number((log.finished or {}).get("peak_memory_bytes")) for log in logs]
    peaks = [peak for peak in peaks if math.isfinite(peak)]
    if peaks:
        how = f"the most that tensors held at once, the largest of {len(peaks):,} ranks"
        if plan.memory:
            parts = ", ".join(f"{part} {quantity(size, 'bytes')}" for part, size in plan.memory.items())
            how += f"; the estimate before the run: {quantity(sum(plan.memory.values()), 'bytes')} ({parts})"
        yield MetricValue("peak_memory", max(peaks), "bytes", "lower", how, len(peaks))


def _final(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    yield from _metric("final_loss", end.get("final_loss"), "", "lower", f"the last step's training loss, rank {rank}")


def _factor(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    how = f"{_timing(end)}, ten steps with the suite's own steps over the measured steps, rank {rank}"
    yield from _metric("vendor_factor", end.get("vendor_factor"), "x", None, how, *_measured(end))


def _to_target(plan: StoredPlan, logs: list[RankLog], starts: int) -> Iterator[MetricValue]:
    reached = logs[0].reached if logs else None
    if reached is not None:
        how = f"host clock of rank {logs[0].rank}, from TRAIN_START to the first EVALUATE at the target"
        earlier = 0.0 if starts > 1 else _before_checkpoint(plan, logs[0].finished or {})
        if starts > 1:
            how += f", with all time between the {starts} starts"
        elif earlier:
            how += f", and the {earlier:,.1f} s of training before the checkpoint from which it continued"
        yield MetricValue("time_to_target", reached.time + earlier, "s", "lower", how)
        how = f"samples of all cards up to step {reached.step:,}, the first EVALUATE at the target"
        yield MetricValue("samples_to_target", float(reached.samples), "samples", "lower", how)


def _before_checkpoint(plan: StoredPlan, end: Mapping[str, Any]) -> float:
    """Return the seconds of a resumed training before its checkpoint."""
    resumed = end.get("resumed")
    if not isinstance(resumed, dict) or not resumed or not plan.config.get("checkpoint_dir"):
        return 0.0
    return number(resumed.get("train_time"))


def _quality(logs: list[RankLog], target: Target) -> Iterator[MetricValue]:
    last = logs[0].last_evaluation if logs else None
    if last is not None and target.name:
        how = f"EVALUATE at step {last.step:,}, the last one"
        for name in target.values:
            yield MetricValue(name, last.metrics.get(name, math.nan), target.unit, target.direction, how)


def _metric(
    name: str,
    value: object,
    unit: str,
    direction: str | None,
    how: str,
    samples: int | None = None,
    warmup: int | None = None,
) -> Iterator[MetricValue]:
    if value is not None:
        yield MetricValue(name, number(value), unit, direction, how, samples, warmup)


def _count(value: object) -> int | None:
    return whole(value) if math.isfinite(number(value)) else None
