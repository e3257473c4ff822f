"""The time of day, and scheduled calls for a process with a single thread."""

from __future__ import annotations

import time
from typing import Callable


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Timer:
    """Calls that are made once after a delay, and calls that are repeated at an interval."""

    def __init__(self) -> None:
        self._once: list[tuple[float, Callable[[], None]]] = []
        self._repeated: list[_Repeated] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._once.append((time.monotonic() + seconds, call))

    def every(self, seconds: float, call: Callable[[float], None]) -> None:
        """Repeat the call; it gets the seconds since the previous call."""
        self._repeated.append(_Repeated(seconds, call))

    def run_due_calls(self) -> None:
        now = time.monotonic()
        for repeated in self._repeated:
            repeated.tick(now)
        ready = [call for when, call in self._once if when <= now]
        self._once = [(when, call) for when, call in self._once if when > now]
        for call in ready:
            call()


class _Repeated:
    def __init__(self, every_s: float, call: Callable[[float], None]) -> None:
        self._every_s = every_s
        self._call = call
        self._last = time.monotonic()

    def tick(self, now: float) -> None:
        if now - self._last >= self._every_s:
            passed_s, self._last = now - self._last, now
            self._call(passed_s)
