"""Sums over all steps and evaluations of a rank's log, including those that are not in the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagperf_driver.perflog import number


@dataclass
class LogTotals:
    """Seconds, steps and samples since TRAIN_START; a window is the time between two STEP_END records."""

    windows: int = 0
    windows_s: float = 0.0
    waited_s: float = 0.0
    measured_s: float = 0.0
    """Seconds of the windows that lie wholly after the warm-up."""
    straddling_s: float = 0.0
    """Seconds of the window in which the warm-up ends."""
    measured_wait_s: float = 0.0
    """Seconds of waiting for input in both."""
    rated_samples: float = 0.0
    """The samples by the logged throughputs and the windows' seconds."""
    step: int = 0
    samples: int = 0
    evaluations: int = 0
    evaluated_s: float = 0.0
    longest_evaluation_s: float = 0.0
    evaluated_between_s: float = 0.0
    """Seconds from the record before each evaluation to the evaluation's record."""
    _before: int = 0
    _last_ms: int | None = None

    def begin(self, step: int) -> None:
        """Set the first step of this training; after a checkpoint it is not step 1."""
        if not self.windows:
            self._before = self.step = step - 1

    def at(self, time_ms: int) -> None:
        """Set the time of the last record."""
        self._last_ms = time_ms

    def end_step(self, value: Mapping[str, Any], warmup: int) -> None:
        last = number(value.get("step"))
        samples = number(value.get("samples"))
        if not math.isfinite(last) or not math.isfinite(samples):
            return
        seconds = _finite(value.get("step_time")) * (last - self.step)
        waited = _finite(value.get("input_wait"))
        self.windows += 1
        self.windows_s += seconds
        self.waited_s += waited
        self.rated_samples += _finite(value.get("throughput")) * seconds
        if last - self._before > warmup:
            self.measured_wait_s += waited
            if self.step - self._before >= warmup:
                self.measured_s += seconds
            else:
                self.straddling_s += seconds
        self.step, self.samples = int(last), int(samples)

    def evaluate(self, value: Mapping[str, Any], time_ms: int) -> None:
        seconds = _finite(value.get("time"))
        self.evaluations += 1
        self.evaluated_s += seconds
        self.longest_evaluation_s = max(self.longest_evaluation_s, seconds)
        if self._last_ms is not None:
            self.evaluated_between_s += (time_ms - self._last_ms) / 1000


def _finite(value: object) -> float:
    finite = number(value)
    return finite if math.isfinite(finite) else 0.0
