"""Record when the agent saw each rank's milestones in its log, by clocks that a rank's code cannot change.

A record was written between two reads of the log: the last read without the record, and the first read with it. Both
times are stored, by the monotonic clock and by the host's clock. A late read only widens the interval.

Of the many records of steps and evaluations, sums are stored: the least and the most seconds before them.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from flagperf_driver import events

SCHEMA = 1
MILESTONES = (events.INIT_START, events.INIT_END, events.TRAIN_START, events.TRAIN_END, events.FINISHED)


class Moment(NamedTuple):
    """A time in seconds by the monotonic clock, and in milliseconds since the epoch by the host's clock."""

    s: float
    ms: int

    @classmethod
    def now(cls) -> Moment:
        return cls(round(time.monotonic(), 4), time.time_ns() // 1_000_000)


class Milestones:
    """The milestones of one rank, each with the last time without it and the first time with it."""

    def __init__(self, every_record: bool = False) -> None:
        """With ``every_record`` the agent reads all records of this rank, so the sums are known."""
        self._every_record = every_record
        self.started = Moment.now()
        self._last_read = self.started
        self._intervals: dict[str, tuple[Moment, Moment]] = {}
        self._before: tuple[Moment, Moment] | None = None
        self._seconds = {"steps": [0.0, 0.0], "evaluations": [0.0, 0.0]}
        self._off_s = 0.0

    def add(self, event: str, by: Moment, time_ms: int | None = None) -> None:
        """Store a record that a read of the log returned at the time ``by``; only the first of each event counts.

        ``time_ms`` is the record's own time.
        """
        seen = self._last_read, by
        if event in MILESTONES:
            self._intervals.setdefault(event, seen)
        if time_ms is not None:
            self._off_s = max(self._off_s, (seen[0].ms - time_ms) / 1000, (time_ms - by.ms) / 1000)
        if event == events.TRAIN_START:
            self._before = seen
        elif self._before is not None:
            seconds = self._seconds["evaluations" if event == events.EVALUATE else "steps"]
            seconds[0] += max(seen[0].s - self._before[1].s, 0.0)
            seconds[1] += by.s - self._before[0].s
            self._before = None if event == events.TRAIN_END else seen

    def has(self, event: str) -> bool:
        """Return whether a read has returned such a milestone."""
        return event in self._intervals

    def read_completely(self, begin: Moment) -> None:
        """Note that a read which began at the time ``begin`` reached the end of the log."""
        self._last_read = begin

    def to_json(self) -> dict[str, Any]:
        intervals = {event: {"after": list(after), "by": list(by)} for event, (after, by) in self._intervals.items()}
        sums = {name: [round(bound, 4) for bound in bounds] for name, bounds in self._seconds.items()}
        of_all = {**sums, "off_s": round(self._off_s, 3)} if self._every_record else {}
        return {"started": list(self.started), **intervals, **of_all}
