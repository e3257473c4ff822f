"""When to save if the config gives the mean time between two failures: the interval of Young and Daly."""

from __future__ import annotations

import math

FIRST_STEP = 50
"""The first checkpoint of a process comes at the first log point from this step on: its cost is not known before."""


def interval_s(pause_s: float, failure_interval_s: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least time.

    A checkpoint stops the training for ``pause_s``; a failure loses half an interval in the mean.
    """
    return max(math.sqrt(2 * pause_s * failure_interval_s) - pause_s, 0.0)


class CheckpointInterval:
    """The time of the next checkpoint, on the rank that decides; no checkpoint without a mean time between failures."""

    def __init__(self, failure_interval_s: float | None, first_step: int = 0) -> None:
        self._failures_s = failure_interval_s or 0.0
        self._first = first_step + FIRST_STEP
        self._next_s = 0.0

    def is_due(self, step: int, now_s: float) -> bool:
        return self._failures_s > 0 and step >= self._first and now_s >= self._next_s

    def saved(self, pause_s: float, now_s: float) -> None:
        """Plan the next checkpoint after one that stopped the training for ``pause_s`` until ``now_s``."""
        if self._failures_s > 0:
            self._next_s = now_s + interval_s(pause_s, self._failures_s)
