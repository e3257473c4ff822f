"""The files of the devices' figures, whoever reads them: a columnar series, and the original's log of the vendor."""

from __future__ import annotations

import time
from typing import Any, Sequence, Union

from flagperf_driver import layout
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
"""With these reasons for low clocks nothing is wrong: nobody uses the device, or somebody set its clocks."""
POWER_CAP = "sw_power_cap"
"""A device at its usual power limit works as it was built to; below that somebody has slowed it down."""
LOG_EVERY_S = 5.0
HOST_LOGS = ("cpu", "mem", "pwr")
"""Names of the host's own logs, which a vendor's must not take."""
Cell = Union[float, str, None]


def _text(row: tuple[float, int, list[Cell]]) -> str:
    return "{:.4f},{},{}".format(row[0], row[1], ",".join(["" if cell is None else str(cell) for cell in row[2]]))


class DeviceFiles:
    """One row a device and sample; cells that were not sampled then are empty."""

    def __init__(self, folder: str, vendor: str) -> None:
        self.series = Lines(f"{folder}/{layout.DEVICE_SERIES}", ",".join(COLUMNS), _text)
        self.log = Lines(f"{folder}/{layout.monitor_log(vendor)}") if vendor and vendor not in HOST_LOGS else None
        self._last: dict[int, list[Cell]] = {}

    def row(self, device: int, now: float, cells: list[Cell], last: list[Cell]) -> None:
        """None where nothing was read. ``last`` is every quantity's latest; its owner may go on changing it."""
        self.series.add((now, device, cells))
        self._last[device] = last

    def forget(self, device: int) -> None:
        """It is lost: its last figures are not the present ones."""
        self._last.pop(device, None)

    def write_log(self, _: int = 0) -> None:
        """The time, then a line a device, then an empty one."""
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
    """Where the devices' figures come from."""

    means = ""
    driver: str | None = None
    every_s = 1.0

    def open(self, wanted: Sequence[int] | None) -> str | None:
        """Make ready to sample these devices, None for all; why it cannot."""
        raise NotImplementedError

    def sample(self, tick: int, everything: bool = False) -> None:
        """A row a device; ``everything``: also what it is not the time for."""
        raise NotImplementedError

    def look_after(self, tick: int) -> None:
        """What changes rarely."""

    def processes(self) -> list[tuple[int, int]]:
        """Who computes on the devices: the number of each device, and of a process on it."""
        return []

    def facts(self) -> list[dict[str, Any]]:
        """What the devices are."""
        return []

    def close(self) -> None:
        """Give back what was opened."""
