"""Record when the agent saw each rank's milestones in its log, by clocks that a rank's code cannot change.

A record was written between two reads of the log: the last read without the record, and the first read with it. Both
times are stored, by the monotonic clock and by the host's clock. A late read only widens the interval.
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

    def __init__(self) -> None:
        self.started = Moment.now()
        self._last_read = self.started
        self._intervals: dict[str, tuple[Moment, Moment]] = {}

    def add(self, event: str, by: Moment) -> None:
        """Store a record that a read of the log returned at the time ``by``; only the first of each event counts."""
        if event in MILESTONES:
            self._intervals.setdefault(event, (self._last_read, by))

    def read_completely(self, begin: Moment) -> None:
        """Note that a read which began at the time ``begin`` reached the end of the log."""
        self._last_read = begin

    def to_json(self) -> dict[str, Any]:
        intervals = {event: {"after": list(after), "by": list(by)} for event, (after, by) in self._intervals.items()}
        return {"started": list(self.started), **intervals}
