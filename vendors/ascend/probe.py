"""Devices by the table of ``npu-smi info``: of each two lines, the module's and the chip's.

| 4       910A     | OK              | NA                43             0          / 970            |
| 0       0        | 0000:81:00.0    | 0                 861  / 21534                               |
"""

from __future__ import annotations

import re

from flagperf_driver.node.printed import figure, index, known, refused, two_lines

COMMAND = ["npu-smi", "info"]
ENVIRONMENT = {"PATH": "$PATH:/usr/local/sbin:/usr/local/bin"}
_FIRST = re.compile(r"([0-9]{1,4})\s+(\S.*)")
_PCI = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_VERSION = re.compile(r"Version:\s*([^\s|]+)")


def parse(text: str) -> list[dict[str, object]]:
    version = _VERSION.search(text)
    found = [_device(*lines, version[1] if version else None) for lines in two_lines(text, 3, _opens)]
    if not found:
        raise refused(text, "no device of npu-smi's table")
    return found


def _opens(row: list[str]) -> bool:
    """A chip's line has the same number of cells, and a PCI address in its second."""
    return _FIRST.fullmatch(row[0]) is not None and not _PCI.match(row[1])


def _device(module: list[str], chip: list[str], driver: str | None) -> dict[str, object]:
    number, name = _FIRST.fullmatch(module[0]).groups()  # type: ignore[union-attr]
    power, temperature, *_ = [*module[2].split(), "", ""]
    # Either Memory-Usage alone, or Memory-Usage and HBM-Usage: what a device trains in comes last.
    load, *memory = chip[2].replace("/", " ").split() or [""]
    return known(
        device=_number(chip[0], int(number)),
        name=name,
        driver=driver,
        temperature=figure(temperature),
        power=figure(power),
        memory_used=figure(memory[-2]) if len(memory) >= 2 else None,
        memory_total=figure(memory[-1]) if len(memory) >= 2 else None,
        utilization=figure(load),
    )


def _number(cell: str, module: int) -> int:
    """A chip's line has its place in the module, and mostly its number on the host, which is what programs use."""
    words = cell.split()
    number = index(words[1]) if len(words) == 2 else None
    return module if number is None else number
