"""Run each sampling task at its own rate on a fixed grid. Late and missed samples are counted, not repeated."""

from __future__ import annotations

import math
import os
import select
import time
from typing import Any, Callable

GAPS_AT_MOST = 100
"""Maximum number of gaps that are stored with their times; all gaps are counted."""
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


class Lateness:
    """The lateness of samples: percentiles with an error of at most a tenth, in constant memory."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._worst = 0.0

    def add(self, seconds: float) -> None:
        bucket = int(10 * math.log(max(seconds * 1e6, 1.0)))
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._worst = max(self._worst, seconds)

    def milliseconds(self) -> dict[str, float]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        percentiles = {name: round(self._percentile(share) * 1e3, 3) for name, share in shares.items()}
        return {**percentiles, "max": round(self._worst * 1e3, 3)}

    def _percentile(self, share: float) -> float:
        counts = dict(self._counts)
        left = share * sum(counts.values())
        for bucket in sorted(counts):
            left -= counts[bucket]
            if left <= 0:
                return min(math.exp((bucket + 1) / 10) / 1e6, self._worst)
        return self._worst


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
        self._gap_count = 0
        self._gaps: list[dict[str, float]] = []
        self._last = 0.0
        self._lateness = Lateness()

    def start(self, now: float) -> None:
        self._start = self.due = now

    def run(self, now: float) -> None:
        late = now - self.due
        self._lateness.add(late)
        missed = int(late / self.every_s)
        if missed:
            self._note_gap(missed)
        self._tick += missed
        self._last = time.time()
        self._call(self._tick)
        self._samples += 1
        self._tick += 1
        self.due = self._start + self._tick * self.every_s

    def _note_gap(self, missed: int) -> None:
        self._missed += missed
        self._gap_count += 1
        if len(self._gaps) < GAPS_AT_MOST:
            since = self._last or time.time()
            self._gaps.append({"time": round(since, 3), "seconds": round(time.time() - since, 3), "missed": missed})

    def report(self) -> dict[str, Any]:
        return {
            "every_s": self.every_s,
            "samples": self._samples,
            "missed": self._missed,
            "gap_count": self._gap_count,
            "gaps": list(self._gaps),
            "late_ms": self._lateness.milliseconds(),
        }


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
