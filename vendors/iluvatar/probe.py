"""Read devices from ixsmi's table: one line for identity, one line for load.

| 0    Iluvatar BI-V100         | 00000000:98:00.0     | 1500MHz   1200MHz    |
| 0%   30C   P0    40W / 250W   | 257MiB / 32768MiB    | 0%        Default    |
"""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.tool_output import (
    after,
    computing,
    figure,
    joined,
    known,
    two_line_readings,
    two_lines,
)

COMMAND = ["ixsmi"]
ENVIRONMENT = {"PATH": "$PATH:/usr/local/corex/bin", "LD_LIBRARY_PATH": "/usr/local/corex/lib"}
_FIRST = re.compile(r"([0-9]{1,4})\s+(\S.*)")
_MEGAHERTZ = re.compile(r"([0-9]{1,6})\s*MHz", re.IGNORECASE)


def parse(text: str) -> list[dict[str, object]]:
    driver = after("Driver Version", text)
    devices = [_device(*lines, driver) for lines in two_lines(text, COMMAND[0], 3, _opens)]
    return joined(devices, computing(text))


def _opens(row: list[str]) -> bool:
    return _FIRST.fullmatch(row[0]) is not None


def _device(identity: list[str], load: list[str], driver: str | None) -> dict[str, object]:
    number, name = _FIRST.fullmatch(identity[0]).groups()  # type: ignore[union-attr]
    clocks = _MEGAHERTZ.findall(identity[2])
    return known(
        device=int(number),
        name=name,
        driver=driver,
        **two_line_readings(identity, load),
        utilization=figure(load[2], "%"),
        sm_clock=float(clocks[0]) if len(clocks) == 2 else None,
        memory_clock=float(clocks[1]) if len(clocks) == 2 else None,
    )
