"""Run each sampling task at its own rate on a fixed grid. Missed samples are counted, not repeated."""

from __future__ import annotations

import os
import select
import time
from typing import Any, Callable

HOST_S = 1.0
DEVICES_S = 1.0
"""Unless the user sets --flagperf-sample."""
LOAD_S = 0.5
PROCESSES_S = 2.0
"""All processes are read in this interval, the waiting of the ranks in that of the load."""
IPMI_S = 120.0
"""Reading keeps a core busy for tenths of a second in the kernel; FlagPerf uses the same interval."""
HEALTH_S = 10.0
FOREIGN_S = 5.0
"""Foreign processes on the devices."""
LOG_S = 5.0
"""A line in FlagPerf's own logs of a host."""
_SLEEP_S = 0.1


class Stop:
    """A stop signal for all threads, which a signal handler may set."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self.stopped = False

    def stop(self, *_: object) -> None:
        if not self.stopped:
            self.stopped = True
            os.close(self._write_end)

    def wait(self, seconds: float) -> None:
        """Wait until stopped, at most for the given time. Short waits use sleep(), which takes half the CPU time."""
        if seconds > _SLEEP_S:
            select.select([self._read_end], [], [], seconds)
        elif seconds > 0:
            time.sleep(seconds)


class Task:
    """A repeated task; ``call`` gets the number of the tick, which includes missed ticks."""

    def __init__(self, name: str, every_s: float, call: Callable[[int], None]) -> None:
        self.name = name
        self.every_s = every_s
        self.due = 0.0
        self._call = call
        self._start = 0.0
        self._tick = 0
        self._samples = 0
        self._missed = 0

    def start(self, now: float) -> None:
        self._start = self.due = now

    def run(self, now: float) -> None:
        missed = int((now - self.due) / self.every_s)
        self._missed += missed
        self._tick += missed
        self._call(self._tick)
        self._samples += 1
        self._tick += 1
        self.due = self._start + self._tick * self.every_s

    def report(self) -> dict[str, Any]:
        return {"every_s": self.every_s, "samples": self._samples, "missed": self._missed}


def run(tasks: list[Task], stop: Stop) -> None:
    """Run every task at its times until ``stop`` is set; tasks that are due together run in their order."""
    start = time.monotonic()
    for task in tasks:
        task.start(start)
    while not stop.stopped:
        for task in tasks:
            now = time.monotonic()
            if task.due <= now:
                task.run(now)
        stop.wait(min(task.due for task in tasks) - time.monotonic())
