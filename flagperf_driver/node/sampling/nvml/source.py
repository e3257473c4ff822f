"""Devices through NVML: figures in microseconds, without a process for each sample.

``pynvml`` lies beside the shipped code, in ``lib``; without it, without the driver's library, or with one that knows
only a part, what is missing is said once and the rest is sampled.
"""

from __future__ import annotations

import time
from typing import Any, Sequence

from flagperf_driver.node.sampling.devices import QUANTITIES, Cell, DeviceFiles, DeviceSource
from flagperf_driver.node.sampling.health import DeviceHealth
from flagperf_driver.node.sampling.notes import CHANGED, Notes
from flagperf_driver.node.sampling.nvml.facts import (
    computing_processes,
    device_facts,
    driver_version,
    pcie_bus,
    standing,
)
from flagperf_driver.node.sampling.nvml.library import NEVER, NvmlError, ask, load
from flagperf_driver.node.sampling.nvml.quantities import Quantity, quantities

_LOST = (15, 16)  # fallen off the bus; needs a reset
_UTILIZATION = QUANTITIES.index("utilization")
_BUSY = 50
"""Percent of utilization from which on a bus that slows down at rest is awake."""


class Device:
    """One device while it is there, and its latest figures."""

    def __init__(self, index: int, handle: Any, questions: list[Quantity], notes: Notes) -> None:
        self.index = index
        self.handle = handle
        self.questions = questions
        self.last: list[Cell] = [None] * len(QUANTITIES)
        self.lost = False
        self.told: set[str] = set()
        self.facts: dict[str, Any] = {}
        self.course = DeviceHealth(index, notes)


class Nvml(DeviceSource):
    """All the devices that were asked for; each quantity as often as it changes."""

    def __init__(self, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self.every_s = every_s
        self.means = "NVML"
        self._files = files
        self._notes = notes
        self._devices: list[Device] = []
        self._questions: list[Quantity] = []
        self._due: dict[float, int] = {}
        self._nvml: Any = None

    def open(self, wanted: Sequence[int] | None) -> str | None:
        try:
            self._nvml = nvml = load()
            count = int(nvml.nvmlDeviceGetCount())
        except NvmlError as error:
            return str(error)
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        self.driver = driver_version(nvml)
        self.means = f"NVML, driver {self.driver or 'unknown'}"
        self._questions = quantities(nvml)
        self._due = {question.every_s: 0 for question in self._questions}
        for index in range(count) if wanted is None else wanted:
            self._add(index, count)
        return None if self._devices else f"NVML: none of the devices {wanted or 'of this host'} can be read"

    def _add(self, index: int, count: int) -> None:
        if index >= count:
            self._notes.missing(f"all figures: NVML knows {count} devices", index)
            return
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self._notes.event(f"device {index} cannot be read from the start: {error}", index)
            return
        device = Device(index, handle, list(self._questions), self._notes)
        device.facts = device_facts(self._nvml, index, handle)
        self._devices.append(device)

    def sample(self, tick: int, everything: bool = False) -> None:
        due = {every_s for every_s, when in self._due.items() if everything or tick >= when}
        for every_s in due:
            self._due[every_s] = tick + max(1, round(every_s / self.every_s))
        for device in self._devices:
            if not device.lost:
                self._read(device, due)

    def _read(self, device: Device, due: set[float]) -> None:
        cells: list[Cell] = [None] * len(QUANTITIES)
        last, handle = device.last, device.handle
        now = time.time()
        for question in device.questions:
            if question.every_s not in due:
                continue
            try:
                found = question.read(handle)
            except self._nvml.NVMLError as error:
                self._failed(device, question, error)
                if device.lost:
                    break
                continue
            for column, value in zip(question.columns, found):
                cells[column] = last[column] = value
        if not device.lost:
            self._files.row(device.index, now, cells, last)
        if device.lost:
            self._files.forget(device.index)

    def _failed(self, device: Device, question: Quantity, error: Any) -> None:
        names = ", ".join(question.names)
        if error.value in _LOST:
            device.lost = True
            self._notes.event(f"device {device.index} is lost: {error}", device.index, CHANGED)
        elif error.value in NEVER:
            device.questions = [one for one in device.questions if one is not question]
            self._notes.missing(f"{names}: {error}", device.index)
        else:
            for column in question.columns:
                device.last[column] = None
            self._notes.error(f"device {device.index}, {names}: {error}")

    def look_after(self, _: int) -> None:
        """The driver, what a device is and how it fares: what changes is an event."""
        driver = driver_version(self._nvml)
        if driver != self.driver and driver:
            self._notes.event(f"the driver went from {self.driver} to {driver}", kind=CHANGED)
            self.driver = driver
        for device in self._devices:
            if not device.lost:
                device.course.learn({**standing(self._nvml, device.handle), **self._bus_at_work(device)})

    def _bus_at_work(self, device: Device) -> dict[str, Any]:
        """At rest it is slow on purpose."""
        if (device.last[_UTILIZATION] or 0) < _BUSY:  # type: ignore[operator]
            return {}
        bus = pcie_bus(self._nvml, device.handle)
        for name, what in (("pcie_width", "{} of its {} PCIe lanes"), ("pcie_generation", "PCIe {} of {}")):
            now, best = bus[name], device.facts[f"best_{name}"]
            if now and best and now < best and name not in device.told:
                device.told.add(name)
                self._notes.event(f"device {device.index} computes with {what.format(now, best)}", device.index)
        return bus

    def processes(self) -> list[tuple[int, int]]:
        there = [device for device in self._devices if not device.lost]
        return [(device.index, pid) for device in there for pid in self._pids(device)]

    def _pids(self, device: Device) -> set[int]:
        found = computing_processes(self._nvml, device.handle)
        if found is None:
            self._notes.missing("who else computes on the devices: the driver does not tell", device.index)
        return {int(process.pid) for process in found or ()}

    def facts(self) -> list[dict[str, Any]]:
        return [device.facts for device in self._devices if not device.lost]

    def close(self) -> None:
        if self._nvml is not None:
            ask(self._nvml, self._nvml.nvmlShutdown)
