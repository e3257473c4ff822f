"""The progress of a round, from the events of its first rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flagperf_driver import events
from flagperf_driver.perflog import number
from pytest_flagperf.whole_numbers import LARGEST_COUNT

_ESTIMATE_AFTER_S = 10.0
"""The shortest training from which the remaining time is estimated."""


@dataclass(frozen=True)
class TrackedProgress:
    """The progress of a running round as the tracker derives it from events; None for unknown values."""

    case: str
    round: int
    phase: str = "starting"
    step: int = 0
    samples: int = 0
    loss: float | None = None
    metric_name: str = ""
    metric: float | None = None
    target: float | None = None
    throughput: float | None = None
    sample_unit: str = "samples"
    elapsed_s: float = 0.0
    time_left_s: float | None = None
    event: str = ""


@dataclass(frozen=True)
class Bounds:
    """The bounds at which the training ends at the latest."""

    max_steps: float | None = None
    max_samples: float | None = None
    max_time_s: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Bounds:
        return cls(*(_bound(config.get(name)) for name in ("max_steps", "max_samples", "max_time_s")))


def _bound(value: object) -> float | None:
    bound = number(value)
    return bound if math.isfinite(bound) else None


@dataclass(frozen=True)
class Mark:
    """The first complete step, which warms up; the speed is that of the steps after it."""

    step: int
    samples: int
    time_ms: int


def time_left(bounds: Bounds, now: TrackedProgress, since: Mark, trained_s: float) -> float | None:
    """Return the seconds to the nearest bound at the mean speed of ``trained_s`` since a mark; None without a bound.

    None also while too little was trained for an estimate.
    """
    if trained_s < _ESTIMATE_AFTER_S:
        return None
    times = [
        max(0.0, (bound - done) * trained_s / (done - before))
        for bound, done, before in (
            (bounds.max_steps, now.step, since.step), (bounds.max_samples, now.samples, since.samples),
        )
        if bound is not None and done > before
    ]  # fmt: skip
    if bounds.max_time_s is not None:
        times.append(max(0.0, bounds.max_time_s - now.elapsed_s))
    return min(times, default=None)


class Tracker:
    """Keeps the latest progress from a stream of events."""

    def __init__(self, start: TrackedProgress, bounds: Bounds, started_ms: int) -> None:
        self.now = start
        self._bounds = bounds
        self._started_ms = started_ms
        self._first_step: Mark | None = None

    def take(self, event: str, value: Mapping[str, Any], time_ms: int) -> TrackedProgress:
        now = replace(
            self.now,
            event=event,
            elapsed_s=max(0.0, (time_ms - self._started_ms) / 1000),
            phase=_PHASES.get(event, self.now.phase),
            step=_int(value.get("step"), self.now.step),
            samples=_int(value.get("samples"), self.now.samples) if event == events.STEP_END else self.now.samples,
            loss=_float(value.get("loss"), self.now.loss),
            throughput=_float(value.get("throughput"), self.now.throughput),
            metric=_float(_metrics(event, value).get(self.now.metric_name), self.now.metric),
        )
        if event == events.STEP_END and self._first_step is None:
            self._first_step = Mark(now.step, now.samples, time_ms)
        first = self._first_step
        left = time_left(self._bounds, now, first, (time_ms - first.time_ms) / 1000) if first else None
        self.now = replace(now, time_left_s=left)
        return self.now


_PHASES = {
    events.INIT_START: "init",
    events.TRAIN_START: "training",
    events.EVALUATE: "training",
    events.TRAIN_END: "ending",
    events.FINISHED: "finished",
    events.FAILED: "failed",
}


def _metrics(event: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if event in (events.EVALUATE, events.INIT_EVALUATION):
        return value
    final = value.get("final_metrics") if event == events.FINISHED else None
    return final if isinstance(final, Mapping) else {}


def _float(value: object, otherwise: float | None) -> float | None:
    return otherwise if value is None else number(value)


def _int(value: object, otherwise: int) -> int:
    """Return a count; ignore values that no training can reach."""
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else otherwise
