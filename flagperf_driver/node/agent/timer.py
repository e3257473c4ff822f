"""The time of day, and scheduled calls for a process with a single thread."""

from __future__ import annotations

import time
from typing import Callable


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Timer:
    """Calls that are made once after a delay, and calls that are repeated at an interval."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((time.monotonic() + seconds, call))

    def every(self, seconds: float, call: Callable[[float], None]) -> None:
        """Repeat the call; it gets the seconds since the previous call."""
        previous = time.monotonic()

        def repeat() -> None:
            nonlocal previous
            now = time.monotonic()
            passed_s, previous = now - previous, now
            self.after(seconds, repeat)
            call(passed_s)

        self.after(seconds, repeat)

    def run_due_calls(self) -> None:
        now = time.monotonic()
        due = [call for when, call in self._calls if when <= now]
        self._calls = [(when, call) for when, call in self._calls if when > now]
        for call in due:
            call()
