"""Measure the device's working and waiting times without making any step wait for the device."""

from __future__ import annotations

import statistics
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol, Sequence


class Marks(Protocol):
    """Points on the device's timeline."""

    name: str
    """The name of the clock in reports, e.g. "device events"."""

    def mark(self) -> Any:
        """Record a mark that the device reaches after all work submitted so far; return at once."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last mark and return the time from each mark to the next."""


class HostMarks:
    """Marks by the host's clock, for devices whose calls return when their work is done."""

    name = "host clock"
    mark = staticmethod(time.perf_counter)

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in zip(marks, marks[1:])]


class EventMarks:
    """Marks by events in the device's stream; the events are reused."""

    name = "device events"

    def __init__(self, event: Callable[..., Any]) -> None:
        """``event`` is the framework's class of events."""
        self._event = event
        self._free: list[Any] = []

    def mark(self) -> Any:
        event = self._free.pop() if self._free else self._event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        gaps = [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:])]
        self._free.extend(marks)
        return gaps


@dataclass
class Totals:
    """Sums over all windows; fields named "measured" exclude the warm-up."""

    compute: float = 0.0
    waiting: float = 0.0
    by_host: float = 0.0
    """The time of the windows by the host's clock, as a check of a vendor's own marks."""
    first_step: float = 0.0
    measured_compute: float = 0.0
    measured_forward: float | None = None
    """None if no step's forward pass was marked."""
    measured_samples: int = 0
    measured: array[float] = field(default_factory=lambda: array("d"))

    def forward_time(self) -> float | None:
        """Return the mean forward time of a step; None without measured steps, or if it is unknown."""
        return None if self.measured_forward is None else self.measured_forward / len(self.measured)

    def step_time(self) -> dict[str, float] | None:
        """Return statistics of the step time, including the wait for input; None without measured steps."""
        times = sorted(self.measured)
        if not times:
            return None
        ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        shares = {name: times[min(len(times) - 1, int(share * len(times)))] for name, share in ranks.items()}
        return {"mean": statistics.fmean(times), **shares}


@dataclass(frozen=True)
class StepWindow:
    """The steps between two log points."""

    steps: int
    seconds: float
    waiting: float
    samples: int

    @classmethod
    def joined(cls, windows: Sequence[StepWindow]) -> StepWindow:
        """Return the sums of several windows."""
        return cls(
            sum(window.steps for window in windows),
            sum(window.seconds for window in windows),
            sum(window.waiting for window in windows),
            sum(window.samples for window in windows),
        )


class Timeline:
    """Marks of every micro-step on the device: its begin, the begin of its backward pass, and its end.

    The gap before a begin is the wait for input. A rank does not wait for others in its forward pass, so the
    forward time shows which rank is slow. A step that is one compiled graph has no mark within it, and its forward
    time is unknown.
    """

    def __init__(self, marks: Marks, warmup_steps: int) -> None:
        self.marks = marks
        self.totals = Totals()
        self._warmup = warmup_steps
        self._seen = 0
        self._marks_per_step = 2
        self._line: list[Any] = []
        self._steps: list[tuple[int, int]] = []
        self._since = self._submitted = 0.0

    @property
    def open_steps(self) -> int:
        """The number of steps since the last window was closed."""
        return len(self._steps)

    def resume(self) -> None:
        """Start counting time; call this method after an evaluation, a log point or a checkpoint."""
        self._line = [self.marks.mark()]
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Mark the begin of a micro-step, when its batch has arrived."""
        self._line.append(self.marks.mark())

    def begin_backward(self) -> None:
        """Mark the begin of a micro-step's backward pass; in all micro-steps of a training, or in none."""
        self._marks_per_step = 3
        self._line.append(self.marks.mark())

    def end(self) -> None:
        """Mark the end of a micro-step, when all of its work is submitted."""
        self._line.append(self.marks.mark())
        self._submitted = time.perf_counter()

    def step(self, samples: int) -> None:
        """Combine the micro-steps since the last call into a step with this number of samples of this rank."""
        self._steps.append((len(self._line) - 1, samples))

    def drop(self) -> None:
        """Discard the micro-steps of an incomplete step."""
        del self._line[(self._steps[-1][0] if self._steps else 0) + 1 :]

    def close(self) -> StepWindow:
        """Wait for the device, read the marks and return the window; ``resume`` starts the next window."""
        closing = time.perf_counter()
        gaps = self.marks.seconds(self._line)
        # Without the time since the last step: a host that was paused then did not slow down a step.
        self.totals.by_host += self._submitted - self._since + time.perf_counter() - closing
        start, waiting = 0, 0.0
        for end, samples in self._steps:
            wait, *work = (sum(gaps[start + part : end : self._marks_per_step]) for part in range(self._marks_per_step))
            self._count(wait, work[0] if len(work) == 2 else None, sum(work), samples)
            start, waiting = end, waiting + wait
        window = StepWindow(len(self._steps), sum(gaps[:start]), waiting, sum(count for _, count in self._steps))
        self._line, self._steps = [], []
        return window

    def _count(self, wait: float, forward: float | None, work: float, samples: int) -> None:
        totals = self.totals
        self._seen += 1
        totals.compute += work
        totals.waiting += wait
        if self._seen == 1:
            totals.first_step = wait + work
        if self._seen > self._warmup:
            totals.measured_compute += work
            if forward is not None:
                totals.measured_forward = (totals.measured_forward or 0.0) + forward
            totals.measured_samples += samples
            totals.measured.append(wait + work)
