"""What the steps and evaluations of a rank's log add up to: every line counts, also those that the curves leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flagperf_driver.perflog import number


@dataclass
class LogTotals:
    """Seconds, steps and samples since TRAIN_START. A window is what lies between two STEP_END records."""

    windows: int = 0
    windows_s: float = 0.0
    waited_s: float = 0.0
    measured_s: float = 0.0
    """Of the windows that lie wholly after the warm-up."""
    straddling_s: float = 0.0
    """Of the window in which the warm-up ends."""
    measured_wait_s: float = 0.0
    """Waiting for input in both."""
    rated_samples: float = 0.0
    """What the logged throughputs make of the windows' seconds."""
    step: int = 0
    samples: int = 0
    evaluations: int = 0
    evaluated_s: float = 0.0
    longest_evaluation_s: float = 0.0
    evaluated_between_s: float = 0.0
    """From the record before each evaluation to the evaluation's."""
    _before: int = 0
    _last_ms: int | None = None

    def begin(self, step: int) -> None:
        """The training begins with this step: after a checkpoint it is not the first one."""
        if not self.windows:
            self._before = self.step = step - 1

    def at(self, time_ms: int) -> None:
        """A record was written then."""
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
    got = number(value)
    return got if math.isfinite(got) else 0.0
