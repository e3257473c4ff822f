"""Devices by mx-smi's table: of each two lines, what it is and what it does.

| 0           MetaX C500             | 0000:0e:00.0        | 0%                   |
| 35C         54W / 350W             | 826/65536 MiB       |                      |
"""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.printed import (
    after,
    computing,
    figure,
    first,
    joined,
    known,
    limit,
    pci,
    two_lines,
    used_of_total,
)

COMMAND = ["mx-smi"]
ENVIRONMENT = {"PATH": "$PATH:/opt/mxdriver/bin:/opt/maca/bin"}
_FIRST = re.compile(r"([0-9]{1,4})\s+(\S+(?: \S+)*).*")  # the name ends where there are two spaces


def parse(text: str) -> list[dict[str, object]]:
    driver, firmware = after("Kernel Mode Driver Version", text), after("BIOS Version", text)
    found = [_device(*lines, driver, firmware) for lines in two_lines(text, COMMAND[0], 3, _opens)]
    return joined(found, computing(text))


def _opens(row: list[str]) -> bool:
    return _FIRST.fullmatch(row[0]) is not None


def _device(what: list[str], load: list[str], driver: str | None, firmware: str | None) -> dict[str, object]:
    number, name = _FIRST.fullmatch(what[0]).groups()  # type: ignore[union-attr]
    used, total = used_of_total(load[1], "MiB")
    return known(
        device=int(number),
        name=name,
        pci=pci(what[1]),
        driver=driver,
        firmware=firmware,
        temperature=first(load[0], "C"),
        power=first(load[0], "W"),
        power_limit=limit(load[0], "W"),
        memory_used=used,
        memory_total=total,
        utilization=figure(what[2], "%"),
    )
