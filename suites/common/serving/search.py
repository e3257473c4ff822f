"""The search for the highest rate of requests at which a server keeps limits, by as few rates as possible."""

from __future__ import annotations

import math
from collections.abc import Iterable

_UP, _DOWN, _LEAST = 1.3, 0.6, 0.05
_DIGITS = 4


class RateSearch:
    """Knows the highest rate that was kept, and the lowest that was not; returns the next rate to try."""

    def __init__(self, start: float, precision: float, known: Iterable[tuple[float, bool]] = ()) -> None:
        """Begin at ``start``, or between rates that are known to be kept or not."""
        self._start, self._precision = start, precision
        self.kept, self.beyond = 0.0, math.inf
        for rate, kept in sorted(known):
            self.add(rate, kept=kept)

    def add(self, rate: float, *, kept: bool) -> None:
        """Take the result of a rate; a rate above a rate that was not kept is no result."""
        if not kept:
            self.beyond = min(self.beyond, rate)
        elif rate < self.beyond:
            self.kept = max(self.kept, rate)

    def next(self) -> float | None:
        """Return the next rate; None if both are close enough, or no rate is kept."""
        if self.beyond == math.inf:
            rate = self.kept * _UP or self._start
        elif not self.kept:
            rate = self.beyond * _DOWN
            if rate < self._start * _LEAST:
                return None
        elif self.beyond <= self.kept * (1 + self._precision):
            return None
        else:
            rate = math.sqrt(self.kept * self.beyond)
        return float(f"{rate:.{_DIGITS}g}")
