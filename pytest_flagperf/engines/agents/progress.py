"""The progress of a round, from the events of its first rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flagperf_driver import events
from flagperf_driver.perflog import number
from pytest_flagperf.report.terminal.progress import RoundProgress
from pytest_flagperf.whole_numbers import LARGEST_COUNT

_ESTIMATE_AFTER_S = 10.0
"""The shortest training from which the remaining time is estimated."""


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
    """A step and when it was complete. The first one warms up: the speed is that of the steps after it."""

    step: int
    samples: int
    time_ms: int


def time_left(bounds: Bounds, now: Mark, since: Mark, elapsed_s: float) -> float | None:
    """Return the seconds to the nearest bound at the mean speed since a mark; None without a bound.

    None also while too little was trained for an estimate.
    """
    trained_s = (now.time_ms - since.time_ms) / 1000
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
        times.append(max(0.0, bounds.max_time_s - elapsed_s))
    return min(times, default=None)


class Tracker:
    """Keeps the latest progress from a stream of events."""

    def __init__(self, start: RoundProgress, bounds: Bounds, started_ms: int) -> None:
        self.now = start
        self._bounds = bounds
        self._started_ms = started_ms
        self._samples = 0
        self._first_step: Mark | None = None

    def take(self, event: str, value: Mapping[str, Any], time_ms: int) -> RoundProgress:
        now = replace(
            self.now,
            elapsed_s=max(0.0, (time_ms - self._started_ms) / 1000),
            phase=_PHASES.get(event, self.now.phase),
            step=_int(value.get("step"), self.now.step),
            loss=_float(value.get("loss"), self.now.loss),
            throughput=_float(value.get("throughput"), self.now.throughput),
            metric=_float(_metrics(event, value).get(self.now.metric_name), self.now.metric),
        )
        self._samples = _int(value.get("samples"), self._samples) if event == events.STEP_END else self._samples
        mark = Mark(now.step, self._samples, time_ms)
        if event == events.STEP_END and self._first_step is None:
            self._first_step = mark
        left = time_left(self._bounds, mark, self._first_step, now.elapsed_s) if self._first_step else None
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
