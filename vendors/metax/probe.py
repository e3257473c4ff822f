"""Read devices from mx-smi's table: one line for identity, one line for load.

| 0           MetaX C500             | 0000:0e:00.0        | 0%                   |
| 35C         54W / 350W             | 826/65536 MiB       |                      |
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

COMMAND = ["mx-smi"]
ENVIRONMENT = {"PATH": "$PATH:/opt/mxdriver/bin:/opt/maca/bin"}
_FIRST = re.compile(r"([0-9]{1,4})\s+(\S+(?: \S+)*).*")  # the name ends at two spaces


def parse(text: str) -> list[dict[str, object]]:
    driver, firmware = after("Kernel Mode Driver Version", text), after("BIOS Version", text)
    devices = [_device(*lines, driver, firmware) for lines in two_lines(text, COMMAND[0], 3, _opens)]
    return joined(devices, computing(text))


def _opens(row: list[str]) -> bool:
    return _FIRST.fullmatch(row[0]) is not None


def _device(identity: list[str], load: list[str], driver: str | None, firmware: str | None) -> dict[str, object]:
    number, name = _FIRST.fullmatch(identity[0]).groups()  # type: ignore[union-attr]
    return known(
        device=int(number),
        name=name,
        driver=driver,
        firmware=firmware,
        **two_line_readings(identity, load),
        utilization=figure(identity[2], "%"),
    )
