"""The metrics of a training: throughputs, the times of steps, shares, and the way to the target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagperf_driver.logged_step import STEP_FIGURES
from flagperf_driver.node.logs.ranklog import RankLog, whole
from flagperf_driver.perflog import number
from flagperf_driver.target import Target
from pytest_flagperf.results.measured.metrics import MetricValue, as_count, memory, reported, times, timing, token_share
from pytest_flagperf.stored.plan import StoredPlan


def of_round(plan: StoredPlan, logs: Sequence[RankLog], starts: int) -> Iterator[MetricValue]:
    """Yield the metrics that the ranks of a training reported, and those computed from them."""
    yield from _to_target(plan, logs[0], starts)
    first = next((log for log in logs if log.finished is not None), logs[0])
    if first.finished is not None:
        end, rank = first.finished, first.rank
        yield from times(end, rank)
        yield from _throughputs(plan, end, rank)
        yield from _step_times(end, rank)
        for name, figure in STEP_FIGURES.items():
            yield from reported(name, end.get(name), figure.unit, figure.direction, figure.how)
        yield from _shares(plan, end)
        yield from memory(plan, logs)
        how = f"the last step's training loss, rank {rank}"
        yield from reported("final_loss", end.get("final_loss"), "", "lower", how)
    yield from _last_evaluation(logs[0], plan.metric)


def _throughputs(plan: StoredPlan, end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    unit = f"{plan.sample_unit or 'samples'}/s"
    clock = f"host clock of rank {rank}"
    samples, steps = f"{whole(end.get('samples')):,} samples of all cards", as_count(end.get("steps"))
    yield from reported("p_whole", end.get("p_whole"), unit, "higher", f"{samples} over raw_train_time, {clock}", steps)
    how = f"{samples} over train_no_eval_time, {clock}"
    yield from reported("p_train", end.get("p_train"), unit, "higher", how, steps)
    how = f"{_window(end)}, evaluation and input waiting left out"
    yield from reported("p_core", end.get("p_core"), unit, "higher", how, *_measured(end))


def _window(end: Mapping[str, Any]) -> str:
    measured, warmup = whole(end.get("measured_steps")), whole(end.get("warmup_steps"))
    return f"{timing(end)} over {measured:,} steps after {warmup:,} of warm-up"


def _measured(end: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The numbers of measured steps and of warm-up steps before them."""
    return as_count(end.get("measured_steps")), as_count(end.get("warmup_steps"))


def _step_times(end: Mapping[str, Any], rank: int) -> Iterator[MetricValue]:
    times = end.get("step_time")
    for name in ("mean", "p50", "p90", "p99"):
        value = times.get(name) if isinstance(times, dict) else None
        yield from reported(f"step_time_{name}", value, "s", "lower", f"{_window(end)}, rank {rank}", *_measured(end))


def _shares(plan: StoredPlan, end: Mapping[str, Any]) -> Iterator[MetricValue]:
    waited, training = number(end.get("input_wait_time")), number(end.get("train_no_eval_time"))
    if end.get("input_wait_time") is not None and training > 0:
        how = f"{timing(end)}, time that steps waited for input over train_no_eval_time"
        yield MetricValue("input_wait_share", waited / training, "share", "lower", how, as_count(end.get("steps")), 0)
    peak = plan.peak_tflops or 0.0
    how = "padding over all computed tokens, all steps"
    yield from reported("padding_share", end.get("padding_share"), "share", "lower", how, as_count(end.get("steps")), 0)
    if end.get("p_core") is not None and plan.flops_per_sample and peak > 0:
        flops, tokens = plan.flops_per_sample, token_share(end)
        without = "" if tokens == 1 else f" x {tokens:.1%} of the tokens, without padding,"
        how = f"{flops:.4g} FLOPs per sample{without} x p_core over {plan.cards} x {peak:g} TFLOPS of dense peak"
        how += f", declared by {plan.peak_source}" if plan.peak_source else ""
        value = flops * tokens * number(end.get("p_core")) / (plan.cards * peak * 1e12)
        yield MetricValue("mfu", value, "share", "higher", how, *_measured(end))


def _to_target(plan: StoredPlan, log: RankLog, starts: int) -> Iterator[MetricValue]:
    reached = log.reached
    if reached is not None:
        how = f"host clock of rank {log.rank}, from TRAIN_START to the first EVALUATE at the target"
        earlier = 0.0 if starts > 1 else _before_checkpoint(plan, log.finished or {})
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


def _last_evaluation(log: RankLog, target: Target) -> Iterator[MetricValue]:
    last = log.last_evaluation
    if last is not None and target.name:
        how = f"EVALUATE at step {last.step:,}, the last one"
        for name in target.values:
            yield MetricValue(name, last.metrics.get(name, math.nan), target.unit, target.direction, how)
