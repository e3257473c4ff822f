"""What is to be done at its time, by the one thread that does everything."""

from __future__ import annotations

import time
from typing import Callable


class Timer:
    """Calls that are made once, and calls that are made every so often."""

    def __init__(self) -> None:
        self._once: list[tuple[float, Callable[[], None]]] = []
        self._often: list[_Often] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._once.append((time.monotonic() + seconds, call))

    def every(self, seconds: float, call: Callable[[float], None]) -> None:
        """It is told how long ago it was called last."""
        self._often.append(_Often(seconds, call))

    def do_what_is_due(self) -> None:
        now = time.monotonic()
        for each in self._often:
            each.tick(now)
        ready = [call for when, call in self._once if when <= now]
        self._once = [(when, call) for when, call in self._once if when > now]
        for call in ready:
            call()


class _Often:
    def __init__(self, every_s: float, call: Callable[[float], None]) -> None:
        self._every_s = every_s
        self._call = call
        self._last = time.monotonic()

    def tick(self, now: float) -> None:
        if now - self._last >= self._every_s:
            passed, self._last = now - self._last, now
            self._call(passed)
