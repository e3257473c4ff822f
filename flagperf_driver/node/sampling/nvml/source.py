"""Sample devices with NVML, in microseconds and without a process for each sample.

The deployment puts ``pynvml`` into ``lib`` beside the code. If it, the driver's library or a part of that is missing,
this is noted once and the rest is sampled.
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
    stable_facts,
)
from flagperf_driver.node.sampling.nvml.library import NEVER, NvmlError, ask, load
from flagperf_driver.node.sampling.nvml.quantities import NvmlCall, quantities

_LOST = (15, 16)  # NVML errors: GPU is lost, reset required
_UTILIZATION = QUANTITIES.index("utilization")
_BUSY = 50
"""The utilization in percent above which the PCIe bus, which slows down when idle, must run at full speed."""


class Device:
    """One device and the latest values of its quantities."""

    def __init__(self, index: int, handle: Any, notes: Notes) -> None:
        self.index = index
        self.handle = handle
        self.never: set[NvmlCall] = set()  # what the driver does not report for this device
        self.last: list[Cell] = [None] * len(QUANTITIES)
        self.lost = False
        self.reported_buses: set[str] = set()
        self.facts: dict[str, Any] = {}
        self.health = DeviceHealth(index, notes)


class Nvml(DeviceSource):
    """Sample the requested devices, each quantity at its own interval."""

    def __init__(self, every_s: float, files: DeviceFiles, notes: Notes) -> None:
        self.every_s = every_s
        self.means = "NVML"
        self._files = files
        self._notes = notes
        self._devices: list[Device] = []
        self._quantities: list[NvmlCall] = []
        self._due: dict[float, int] = {}
        self._nvml: Any = None

    def open(self, devices: Sequence[int] | None) -> str | None:
        try:
            self._nvml = nvml = load()
            count = int(nvml.nvmlDeviceGetCount())
        except NvmlError as error:
            return str(error)
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        self.driver = driver_version(nvml)
        self.means = f"NVML, driver {self.driver or 'unknown'}"
        self._quantities = quantities(nvml)
        self._due = {quantity.every_s: 0 for quantity in self._quantities}
        for index in range(count) if devices is None else devices:
            self._add(index, count)
        return None if self._devices else f"NVML: no device {devices or 'of this host'} can be read"

    def _add(self, index: int, count: int) -> None:
        if index >= count:
            self._notes.missing(f"all quantities: NVML reports only {count} devices", index)
            return
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self._notes.event(f"device {index} cannot be read: {error}", index)
            return
        device = Device(index, handle, self._notes)
        device.facts = device_facts(self._nvml, index, handle)
        self._devices.append(device)

    def sample(self, tick: int, everything: bool = False) -> None:
        due = {every_s for every_s, when in self._due.items() if everything or tick >= when}
        for every_s in due:
            self._due[every_s] = tick + max(1, round(every_s / self.every_s))
        quantities = [quantity for quantity in self._quantities if quantity.every_s in due]
        for device in self._devices:
            if not device.lost:
                self._read(device, quantities)

    def _read(self, device: Device, quantities: Sequence[NvmlCall]) -> None:
        cells: list[Cell] = [None] * len(QUANTITIES)
        last, handle, never = device.last, device.handle, device.never
        now = time.time()
        for quantity in quantities:
            if quantity in never:
                continue
            try:
                values = quantity.read(handle)
            except self._nvml.NVMLError as error:
                self._failed(device, quantity, error)
                if device.lost:
                    break
                continue
            cells[quantity.columns] = last[quantity.columns] = values
        if not device.lost:
            self._files.row(device.index, now, cells, last)
        if device.lost:
            self._files.forget(device.index)

    def _failed(self, device: Device, quantity: NvmlCall, error: Any) -> None:
        names = ", ".join(quantity.names)
        if error.value in _LOST:
            device.lost = True
            self._notes.event(f"device {device.index} is lost: {error}", device.index, CHANGED)
        elif error.value in NEVER:
            device.never.add(quantity)
            self._notes.missing(f"{names}: {error}", device.index)
        else:
            device.last[quantity.columns] = [None] * len(quantity.names)
            self._notes.error(f"device {device.index}, {names}: {error}")

    def check_health(self, _: int) -> None:
        """Check the driver, and each device's identity and health; note changes as events."""
        driver = driver_version(self._nvml)
        if driver != self.driver and driver:
            self._notes.event(f"the driver changed from {self.driver} to {driver}", kind=CHANGED)
            self.driver = driver
        for device in self._devices:
            if not device.lost:
                device.health.update({**stable_facts(self._nvml, device.handle), **self._bus_under_load(device)})

    def _bus_under_load(self, device: Device) -> dict[str, Any]:
        """Read the PCIe bus of a busy device: the bus of an idle one is slow on purpose."""
        if (device.last[_UTILIZATION] or 0) < _BUSY:  # type: ignore[operator]
            return {}
        bus = pcie_bus(self._nvml, device.handle)
        for name, text in (("pcie_width", "{} of its {} PCIe lanes"), ("pcie_generation", "PCIe generation {} of {}")):
            now, best = bus[name], device.facts[f"best_{name}"]
            if now and best and now < best and name not in device.reported_buses:
                device.reported_buses.add(name)
                self._notes.event(f"device {device.index} uses {text.format(now, best)}", device.index)
        return bus

    def processes(self) -> list[tuple[int, int]]:
        present = [device for device in self._devices if not device.lost]
        return [(device.index, pid) for device in present for pid in self._pids(device)]

    def _pids(self, device: Device) -> set[int]:
        processes = computing_processes(self._nvml, device.handle)
        if processes is None:
            self._notes.missing("foreign processes on the devices: not reported by the driver", device.index)
        return {int(process.pid) for process in processes or ()}

    def facts(self) -> list[dict[str, Any]]:
        return [device.facts for device in self._devices if not device.lost]

    def close(self) -> None:
        if self._nvml is not None:
            ask(self._nvml, self._nvml.nvmlShutdown)
