"""What is to be said about the sampling itself: what was left out and why, and what happened meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

AT_MOST = 200
KINDS = CLOCK_SET, FOREIGN, CHANGED = "clock", "foreign", "changed"
"""Kinds of events that are validity warnings: a clock was set, a foreign process used a device, a device changed."""


class Notes:
    """Everything is said once, however often it is found; several threads may say it."""

    def __init__(self) -> None:
        self.means: dict[str, str] = {}
        self.host: dict[str, Any] = {}
        self.driver: str | None = None
        self.devices: list[dict[str, Any]] = []
        self._missing: dict[str, list[int]] = {}
        self._events: list[dict[str, Any]] = []
        self._errors: dict[str, int] = {}
        self._lock = threading.Lock()

    def missing(self, what: str, device: int | None = None) -> None:
        """A quantity that is not sampled, with the reason; the same of several devices is one sentence."""
        with self._lock:
            if what not in self._missing and len(self._missing) >= AT_MOST:
                return
            devices = self._missing.setdefault(what, [])
            if device is not None and device not in devices:
                devices.append(device)

    def event(self, sentence: str, device: int | None = None, kind: str | None = None, **more: float) -> None:
        entry = {"time": round(time.time(), 3), "device": device, "kind": kind, "sentence": sentence, **more}
        with self._lock:
            if len(self._events) < AT_MOST:
                self._events.append(entry)

    def error(self, what: str) -> None:
        """Something that may go better next time; counted."""
        with self._lock:
            if what in self._errors or len(self._errors) < AT_MOST:
                self._errors[what] = self._errors.get(what, 0) + 1

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "means": dict(self.means),
                "host": dict(self.host),
                "driver": self.driver,
                "devices": list(self.devices),
                "missing": [what + _of(devices) for what, devices in self._missing.items()],
                "events": list(self._events),
                "errors": [{"sentence": what, "times": times} for what, times in self._errors.items()],
            }


def _of(devices: list[int]) -> str:
    if not devices:
        return ""
    return " (device{} {})".format("s" if len(devices) > 1 else "", ", ".join(map(str, sorted(devices))))
