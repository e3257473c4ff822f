"""Read devices from the table of ``npu-smi info``: one line for the module, one line for the chip.

| 4       910A     | OK              | NA                43             0          / 970            |
| 0       0        | 0000:81:00.0    | 0                 861  / 21534                               |

Then follows a line for each process, with the numbers of its module and of the chip in the module:

| 0       0                 | 812345        | python                   | 56621                   |
"""

from __future__ import annotations

import re

from flagperf_driver.node.sampling.tool_output import computing, figure, index, known, pci, two_lines

COMMAND = ["npu-smi", "info"]
ENVIRONMENT = {"PATH": "$PATH:/usr/local/sbin:/usr/local/bin"}
_FIRST = re.compile(r"([0-9]{1,4})\s+(\S.*)")
_PROCESS = re.compile(
    r"(?P<device>[0-9]{1,4} +[0-9]{1,4})\s*\|\s*(?P<pid>[0-9]{1,10})\s*\|(?P<name>[^|]+)\|"
    r"\s*(?P<memory>[0-9]{1,9})\s*(?:\|.*)?"  # newer tools add the pid in the container
)
_VERSION = re.compile(r"Version:\s*([^\s|]+)")


def parse(text: str) -> list[dict[str, object]]:
    version = _VERSION.search(text)
    driver = version[1] if version else None
    users = {tuple(map(int, place.split())): who for place, who in computing(text, _PROCESS).items()}
    return [
        {**_device(*lines, driver), **known(processes=users.get(_place(*lines)))}
        for lines in two_lines(text, COMMAND[0], 3, _opens)
    ]


def _opens(row: list[str]) -> bool:
    """Return True for the line of a module; the line of a chip has a PCI address in its second cell."""
    return _FIRST.fullmatch(row[0]) is not None and pci(row[1]) is None


def _place(module: list[str], chip: list[str]) -> tuple[int, ...]:
    """Return the module's number and the chip's number in the module."""
    words = (module[0].split()[0], *chip[0].split()[:1])
    return tuple(int(word) for word in words if index(word) is not None)


def _device(module: list[str], chip: list[str], driver: str | None) -> dict[str, object]:
    number, name = _FIRST.fullmatch(module[0]).groups()  # type: ignore[union-attr]
    power, temperature, *_ = [*module[2].split(), "", ""]
    # Memory-Usage only, or Memory-Usage and HBM-Usage; the device computes in the last of them.
    load, *memory = chip[2].replace("/", " ").split() or [""]
    return known(
        device=_number(chip[0], int(number)),
        name=name,
        pci=pci(chip[1]),
        driver=driver,
        trouble=None if module[1] == "OK" else module[1],
        temperature=figure(temperature),
        power=figure(power),
        memory_used=figure(memory[-2]) if len(memory) >= 2 else None,
        memory_total=figure(memory[-1]) if len(memory) >= 2 else None,
        utilization=figure(load),
    )


def _number(cell: str, module: int) -> int:
    """Return the number that programs use: the chip's number on the host if its line has one, else the module's."""
    words = cell.split()
    number = index(words[1]) if len(words) == 2 else None
    return module if number is None else number
