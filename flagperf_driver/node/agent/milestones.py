"""When the agent saw its ranks' milestones in their logs: by clocks that no code of a rank can reach.

A record was written between the last look at the log that did not find it and the look that did. Both are kept, by
the monotonic clock and by the host's, so that a late look only widens the interval.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from flagperf_driver import events

SCHEMA = 1
MILESTONES = (events.INIT_START, events.INIT_END, events.TRAIN_START, events.TRAIN_END, events.FINISHED)


class Moment(NamedTuple):
    """Seconds by the monotonic clock, and milliseconds since the epoch by the host's."""

    s: float
    ms: int

    @classmethod
    def now(cls) -> Moment:
        return cls(round(time.monotonic(), 4), time.time_ns() // 1_000_000)


class Milestones:
    """One rank's: since when each was not there yet, and when it was."""

    def __init__(self) -> None:
        self.started = Moment.now()
        self._looked = self.started
        self._found: dict[str, tuple[Moment, Moment]] = {}

    def found(self, event: str, by: Moment) -> None:
        """The look that ended then found a record; the first of a name counts."""
        if event in MILESTONES:
            self._found.setdefault(event, (self._looked, by))

    def looked(self, begin: Moment) -> None:
        """The look that began then found all that was there."""
        self._looked = begin

    def to_json(self) -> dict[str, Any]:
        found = {event: {"after": list(after), "by": list(by)} for event, (after, by) in self._found.items()}
        return {"started": list(self.started), **found}
