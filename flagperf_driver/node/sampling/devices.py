"""Write the devices' measurements: a CSV series, and the vendor's log in FlagPerf's original format."""

from __future__ import annotations

import time
from typing import Any, Sequence, Union

from flagperf_driver import layout
from flagperf_driver.node.sampling.schedule import DEVICES_S
from flagperf_driver.node.sampling.series import STAMP, Lines, device_line

QUANTITIES = (
    "temperature",
    "power",
    "memory_used",
    "memory_total",
    "utilization",
    "sm_clock",
    "memory_clock",
    "throttle",
    "energy",
)
UNITS = ("C", "W", "MiB", "MiB", "%", "MHz", "MHz", "", "J")
COLUMNS = (
    "time [s]",
    "device",
    *(f"{name} [{unit}]" if unit else name for name, unit in zip(QUANTITIES, UNITS)),
)
NO_THROTTLING = frozenset(["none", "idle", "application_clocks", "sync_boost", "display_clocks"])
"""Harmless reasons for low clocks: the device is idle, or a user set its clocks."""
POWER_CAP = "sw_power_cap"
"""A device at its usual power limit works normally; a lower limit slows it down."""
HOST_LOGS = ("cpu", "mem", "pwr")
"""Names of the host's own logs, which are not allowed as vendor names."""
Cell = Union[float, str, None]


def _text(row: tuple[float, int, list[Cell]]) -> str:
    return "{:.4f},{},{}".format(row[0], row[1], ",".join(["" if cell is None else str(cell) for cell in row[2]]))


class DeviceFiles:
    """One row for each device and sample; cells without a sample at that time are empty."""

    def __init__(self, folder: str, vendor: str) -> None:
        self.series = Lines(f"{folder}/{layout.DEVICE_SERIES}", ",".join(COLUMNS), _text)
        self.log = Lines(f"{folder}/{layout.monitor_log(vendor)}") if vendor and vendor not in HOST_LOGS else None
        self._last: dict[int, list[Cell]] = {}

    def row(self, device: int, now: float, cells: list[Cell], last: list[Cell]) -> None:
        """Add a row. ``cells`` contains None where nothing was read; ``last`` is the latest value of each quantity.

        The caller may change ``last`` later.
        """
        self.series.add((now, device, cells))
        self._last[device] = last

    def forget(self, device: int) -> None:
        """Leave a lost device out of the log."""
        self._last.pop(device, None)

    def write_log(self, _: int = 0) -> None:
        """Write the time, one line for each device, and an empty line."""
        if self.log is None or not self._last:
            return
        self.log.add(time.strftime(STAMP))
        for device in sorted(self._last):
            self.log.add(device_line(dict(zip(QUANTITIES, self._last[device]))))
        self.log.add("")

    def flush(self, _: int = 0) -> None:
        self.series.flush()
        if self.log is not None:
            self.log.flush()


class DeviceSource:
    """A source of the devices' measurements."""

    means = ""
    driver: str | None = None
    every_s = DEVICES_S

    def open(self, devices: Sequence[int] | None) -> str | None:
        """Prepare to sample these devices, or all devices for None; return why that is not possible."""
        raise NotImplementedError

    def sample(self, tick: int, everything: bool = False) -> None:
        """Add a row for each device; with ``everything``, sample also the quantities that are not due."""
        raise NotImplementedError

    def check_health(self, tick: int) -> None:
        """Check facts that change rarely."""

    def processes(self) -> list[tuple[int, int]]:
        """Return the processes on the devices: pairs of a device's number and a pid."""
        return []

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of each device."""
        return []

    def close(self) -> None:
        """Release what ``open`` opened."""
