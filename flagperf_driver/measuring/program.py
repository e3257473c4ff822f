"""The program of one rank of a measurement: it logs each point when it is complete."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Mapping, Protocol, Sequence

from flagperf_driver import events, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.measuring.loop import Loop, Measured, PointLimits, SlowPoint
from flagperf_driver.measuring.measurement import Measurement
from flagperf_driver.training.timeline import HostMarks, Marks

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMORY_VARIABLES = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_", "THP_MEM_ALLOC_ENABLE")
"""Variables, or the begin of their names, that change how fast memory is; a figure is only comparable with the same."""


class MeasuringDevice(Protocol):
    """What a framework offers to a measurement: the rank's device, and the exchange with the other ranks."""

    marks: Marks

    def describe(self) -> Mapping[str, Any]:
        """Return the fields of INIT_END: device, libraries, ..."""

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over all ranks."""

    def peak_memory(self) -> int | None:
        """Return the largest number of bytes of device memory that tensors used, or None if unknown."""

    def threads(self) -> int:
        """Return the number of CPU threads that one operation may use."""


class Measuring:
    """One rank's measurement, from INIT_END to FINISHED."""

    def __init__(self, rank: Rank, measurement: Measurement, device: MeasuringDevice) -> None:
        self._rank, self._measurement, self._device = rank, measurement, device
        self._points = 0

    def run(self) -> int:
        """Measure all points and return their number."""
        device, log, threads = self._device, self._rank.log, self._device.threads()
        # An error of this hook must appear before the measurement, not after it.
        device.peak_memory()
        log(events.INIT_END, {**device.describe(), "threads": threads, "environment": memory_settings()})
        init_time = self._rank.age()
        marks = HostMarks() if self._measurement.on_host else device.marks
        loop = Loop(
            self._measurement,
            marks,
            PointLimits.of(self._rank.config),
            maximum=device.maximum,
            core_wait=functools.partial(core_wait, threads),
            owns_time=isinstance(marks, HostMarks) and threads == 1,
            beat=self._beat,
        )
        left_out = 0
        for result in loop.measure():
            if isinstance(result, SlowPoint):
                left_out += 1
                log(events.LEFT_OUT, {**_point(result), "expected_s": result.expected_s})
            else:
                self._points += 1
                log(events.MEASURED, measured(result, marks.name, together=self._measurement.together))
        finished = {
            "points": self._points,
            "left_out": left_out,
            "timing": marks.name,
            "init_time": init_time,
            "threads": threads,
            "peak_memory_bytes": device.peak_memory(),
        }
        log(events.FINISHED, {**finished, "e2e_time": self._rank.age()})
        return self._points

    def _beat(self) -> None:
        self._rank.heartbeat.beat(self._points, heartbeat.TRAIN)


def measured(result: Measured, clock: str, *, together: bool) -> dict[str, Any]:
    """Return the value of a MEASURED event."""
    return {**asdict(result), **_point(result), "clock": clock if result.windows else None, "together": together}


def _point(result: Measured | SlowPoint) -> dict[str, Any]:
    return {"point": result.point.name, "values": dict(result.point.values)}


def memory_settings() -> dict[str, str]:
    """Return this host's settings that change how fast memory is, by name."""
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_MEMORY_VARIABLES)}
    with contextlib.suppress(OSError):
        # The chosen one is in brackets: "always [madvise] never".
        found["transparent_hugepage"] = _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    return found


def core_wait(threads: int) -> float | None:
    """Return the seconds that this process has waited for a core so far; None if the kernel does not count them.

    With one thread per rank only the calling thread counts, as the process's other threads do not compute. With
    several, the sum over all threads is divided by them.
    """
    try:
        if threads == 1:
            return _waited(Path("/proc/thread-self"))
        return sum(map(_waited, Path("/proc/self/task").iterdir())) / threads
    except (OSError, ValueError, IndexError):
        return None


def _waited(task: Path) -> float:
    return int((task / "schedstat").read_bytes().split()[1]) / 1e9
