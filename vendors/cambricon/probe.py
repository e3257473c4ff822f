"""Read devices from cnmon's table: one line for identity, one line for load.

| 0     /   MLU370-X8    v1.1.6 |         0000:39:00.0 | 0%                N/A |
|  0%   32C        106 W/ 250 W |     0 MiB/ 23374 MiB | N/A           Default |
"""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.tool_output import (
    computing,
    figure,
    index,
    joined,
    known,
    two_line_readings,
    two_lines,
)

COMMAND = ["cnmon"]
_FIRST = re.compile(r"([0-9]{1,4})\s+\S+\s+(\S*MLU\S*)\s*(\S*)")
_PROCESS = re.compile(
    r"(?P<device>[0-9]{1,4})\s+\S+\s+(?P<pid>[0-9]{1,10})\s+(?P<name>\S+(?: \S+)*)\s+(?P<memory>[0-9]{1,9}) MiB"
)
_DRIVER = re.compile(r"Driver:?\s+(v[^\s|]+)")


def parse(text: str) -> list[dict[str, object]]:
    driver = _DRIVER.search(text)
    devices = [_device(*lines, driver[1] if driver else None) for lines in two_lines(text, COMMAND[0], 3, _opens)]
    return joined(devices, computing(text, _PROCESS))


def _opens(row: list[str]) -> bool:
    return _FIRST.fullmatch(row[0]) is not None


def _device(identity: list[str], load: list[str], driver: str | None) -> dict[str, object]:
    number, name, firmware = _FIRST.fullmatch(identity[0]).groups()  # type: ignore[union-attr]
    return known(
        device=int(number),
        name=name,
        firmware=firmware,
        driver=driver or _driver_of(identity[1]),
        trouble=_trouble(identity[2]),
        **two_line_readings(identity, load),
        utilization=figure(identity[2], "%"),
    )


def _trouble(cell: str) -> str | None:
    """Return the memory errors; cnmon does not say whether they were corrected."""
    last = cell.split()[-1:]
    return f"Ecc-Error {last[0]}" if last and index(last[0]) else None


def _driver_of(cell: str) -> str | None:
    """Return the driver's version, which cnmon before version 5 prints in the cell of the PCI address."""
    last = cell.split()[-1:]
    return last[0] if last and last[0].startswith("v") else None
