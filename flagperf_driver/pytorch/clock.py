"""When the device worked and when it waited, read when a window is closed: no step waits for the device."""

from __future__ import annotations

import statistics
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Protocol, Sequence

import torch

from flagperf_driver.pytorch import device as devices


class Marks(Protocol):
    """Points on the device's timeline."""

    name: str
    """How it was timed, as the report says it: "device events"."""

    def mark(self) -> Any:
        """Here, when the work that was asked for up to now is done; waits for nothing."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """From each mark to the next; waits for the last."""


class HostMarks:
    """Where a call returns when its work is done."""

    name = "host clock"
    mark = staticmethod(time.perf_counter)

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in zip(marks, marks[1:])]


class DeviceMarks:
    """Events in the device's stream, used again and again."""

    name = "device events"

    def __init__(self, device: torch.device) -> None:
        self._event = devices.part(device, "Event", "events")
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


def events(device: torch.device) -> Marks:
    """Give what marks points on the device's timeline."""
    return HostMarks() if devices.is_host(device) else DeviceMarks(device)


@dataclass
class Totals:
    """What all windows sum up to; "measured" leaves the warm-up out."""

    compute: float = 0.0
    waiting: float = 0.0
    by_host: float = 0.0
    """The windows once more, by the host's clock: the device's may be a vendor's own."""
    first_step: float = 0.0
    measured_compute: float = 0.0
    measured_forward: float = 0.0
    measured_samples: int = 0
    measured: array[float] = field(default_factory=lambda: array("d"))

    def step_time(self) -> dict[str, float] | None:
        """How long a step takes, its input included; None where none was measured."""
        times = sorted(self.measured)
        if not times:
            return None
        ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        shares = {name: times[min(len(times) - 1, int(share * len(times)))] for name, share in ranks.items()}
        return {"mean": statistics.fmean(times), **shares}


@dataclass(frozen=True)
class Window:
    """The steps between two looks at the device."""

    steps: int
    seconds: float
    waiting: float
    samples: int


class Timeline:
    """Every micro-step's begin, turn and end on the device; the gap before a begin is waiting for input.

    Up to its turn, from forward to backward, a rank waits for nobody: that part tells who is slow.
    """

    def __init__(self, marks: Marks, warmup_steps: int) -> None:
        self.marks = marks
        self.totals = Totals()
        self._warmup = warmup_steps
        self._seen = 0
        self._line: list[Any] = []
        self._steps: list[tuple[int, int]] = []
        self._since = self._asked = 0.0

    @property
    def open_steps(self) -> int:
        """Steps since the last window was closed."""
        return len(self._steps)

    def resume(self) -> None:
        """From here on time counts; called after everything that is no step."""
        self._line = [self.marks.mark()]
        self._since = time.perf_counter()

    def begin(self) -> None:
        """A micro-step's batch is there and its work begins."""
        self._line.append(self.marks.mark())

    def turn(self) -> None:
        """A micro-step's loss is asked for; what comes now is backward."""
        self._line.append(self.marks.mark())

    def end(self) -> None:
        """A micro-step's work is asked for."""
        self._line.append(self.marks.mark())
        self._asked = time.perf_counter()

    def step(self, samples: int) -> None:
        """The micro-steps since the last call make a step of so many samples of this rank."""
        self._steps.append((len(self._line) - 1, samples))

    def drop(self) -> None:
        """Forget the micro-steps that came to no step."""
        del self._line[(self._steps[-1][0] if self._steps else 0) + 1 :]

    def close(self) -> Window:
        """Wait for the device and read the marks; ``resume`` opens the next window."""
        closing = time.perf_counter()
        gaps = self.marks.seconds(self._line)
        # Leave out the time since the last step: a host that stood still then slowed no step down.
        self.totals.by_host += self._asked - self._since + time.perf_counter() - closing
        start, waiting = 0, 0.0
        for end, samples in self._steps:
            wait, forward, rest = (sum(gaps[start + part : end : 3]) for part in range(3))
            self._count(wait, forward, forward + rest, samples)
            start, waiting = end, waiting + wait
        window = Window(len(self._steps), sum(gaps[:start]), waiting, sum(count for _, count in self._steps))
        self._line, self._steps = [], []
        return window

    def _count(self, wait: float, forward: float, work: float, samples: int) -> None:
        totals = self.totals
        self._seen += 1
        totals.compute += work
        totals.waiting += wait
        if self._seen == 1:
            totals.first_step = wait + work
        if self._seen > self._warmup:
            totals.measured_compute += work
            totals.measured_forward += forward
            totals.measured_samples += samples
            totals.measured.append(wait + work)
