"""Marks on the device's timeline."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from flagperf_driver.pytorch import device as devices
from flagperf_driver.training.timeline import HostMarks, Marks


class DeviceMarks:
    """Marks by events in the device's stream; the events are reused."""

    name = "device events"

    def __init__(self, device: torch.device) -> None:
        self._event = devices.required(device, "Event", "events")
        self._free: list[Any] = []

    def mark(self) -> Any:
        event = self._free.pop() if self._free else self._event(enable_timing=True)
        event.record()
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        gaps = [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:])]
        self._free.extend(marks)
        return gaps


def events(device: torch.device) -> Marks:
    """Return the marks for a device's timeline."""
    return HostMarks() if devices.is_host(device) else DeviceMarks(device)
