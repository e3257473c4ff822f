"""Notes about the sampling: missing quantities with the reason, events and errors."""

from __future__ import annotations

import threading
import time
from typing import Any

MOST_KEPT = 200
KINDS = CLOCK_SET, FOREIGN, CHANGED = "clock", "foreign", "changed"
"""Kinds of events that are validity warnings: a clock was set, a foreign process used a device, a device changed."""


class Notes:
    """Collect notes from several threads; a repeated note is stored once."""

    def __init__(self) -> None:
        self.means: dict[str, str] = {}
        self.host: dict[str, Any] = {}
        self.driver: str | None = None
        self.devices: list[dict[str, Any]] = []
        self._missing: dict[str, list[int]] = {}
        self._events: list[dict[str, Any]] = []
        self._errors: dict[str, int] = {}
        self._lock = threading.Lock()

    def missing(self, sentence: str, device: int | None = None) -> None:
        """Note a quantity that is not sampled, with the reason; equal notes of several devices become one sentence."""
        with self._lock:
            if sentence not in self._missing and len(self._missing) >= MOST_KEPT:
                return
            devices = self._missing.setdefault(sentence, [])
            if device is not None and device not in devices:
                devices.append(device)

    def event(self, sentence: str, device: int | None = None, kind: str | None = None, **more: float) -> None:
        entry = {"time": round(time.time(), 3), "device": device, "kind": kind, "sentence": sentence, **more}
        with self._lock:
            if len(self._events) < MOST_KEPT:
                self._events.append(entry)

    def error(self, sentence: str) -> None:
        """Count an error that may be temporary."""
        with self._lock:
            if sentence in self._errors or len(self._errors) < MOST_KEPT:
                self._errors[sentence] = self._errors.get(sentence, 0) + 1

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "means": dict(self.means),
                "host": dict(self.host),
                "driver": self.driver,
                "devices": list(self.devices),
                "missing": [sentence + _of(devices) for sentence, devices in self._missing.items()],
                "events": list(self._events),
                "errors": [{"sentence": sentence, "times": times} for sentence, times in self._errors.items()],
            }


def _of(devices: list[int]) -> str:
    if not devices:
        return ""
    return " (device{} {})".format("s" if len(devices) > 1 else "", ", ".join(map(str, sorted(devices))))
