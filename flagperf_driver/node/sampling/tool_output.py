"""Parse the output of vendors' tools: figures with units, and tables drawn with + - and |."""

from __future__ import annotations

import re
from typing import Callable, Pattern

LONGEST_QUOTE = 120
_LONGEST_ROW = 400
_FIGURE = re.compile(r"\s*([-+]?[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([^\s0-9,/|]*)")
_PCI = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_INDEX = re.compile(r"[0-9]{1,6}")
_PROCESS = re.compile(
    r"(?P<device>[0-9]{1,4})\s+(?P<pid>[0-9]{1,10})\s+(?P<name>\S+(?: \S+)*)\s+(?P<memory>[0-9]{1,9})"
)


class NotUnderstood(ValueError):
    """The text is not the normal output of the tool."""


def figure(text: object, *units: str) -> float | None:
    """Return 109.51 for ``109.51W``; None for text that is not a figure (NA, N/A, -) or has another unit."""
    match = _FIGURE.match(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in [unit.lower() for unit in units or ("",)]:
        return None
    return float(match[1])


def first(text: str, unit: str) -> float | None:
    """Return the first figure with that unit; figures after a slash are limits and are skipped."""
    match = re.search(rf"(?<![/0-9.])(?<!/ )([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*{unit}\b", text, re.ASCII)
    return float(match[1]) if match else None


def pci(text: object) -> str | None:
    """Return the PCI address at the start of a text; the host needs it to find the cores near the device."""
    match = _PCI.match(text.strip()) if isinstance(text, str) else None
    return match[0] if match else None


def limit(text: str, unit: str) -> float | None:
    """Return the figure after the last slash: 350 for ``N/A / 350W``."""
    _, slash, last = text.rpartition("/")
    return figure(last, unit) if slash else None


def used_of_total(text: str, *units: str) -> tuple[float | None, float | None]:
    """Return both figures of ``914/65536 MiB`` or ``0 MiB / 23374 MiB``."""
    used, _, total = text.partition("/")
    return figure(used, "", *units), figure(total, *units)


def index(text: str) -> int | None:
    """Return a device's number; None if the cell contains anything else."""
    word = text.strip()
    return int(word) if _INDEX.fullmatch(word) else None


def cells(line: str) -> list[str]:
    """Return the cells between the bars of a table's row; an empty list for any other line."""
    line = line.strip()
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") and line.endswith("|") else []


def table(text: str, *head: str) -> list[list[str]]:
    """Return the cells of each device's line below these headings; the first cell is the device's number."""
    rows = [row for row in map(cells, _complete_lines(text)) if any(row)]
    if list(head) not in rows:
        raise refused(text, "no table with the columns " + ", ".join(head))
    devices = rows[rows.index(list(head)) + 1 :]
    wrong = [row for row in devices if len(row) != len(head) or index(row[0]) is None]
    if wrong:
        line = _quote(" | ".join(wrong[0]))
        raise NotUnderstood(f"{line} is not the line of a device; expected a number and {len(head) - 1} more cells")
    if not devices:
        raise refused(text, "no device found below the headings")
    return devices


def two_lines(
    text: str, tool: str, columns: int, opens: Callable[[list[str]], bool]
) -> list[tuple[list[str], list[str]]]:
    """Return the cells of both lines of each device; ``opens`` recognizes a first line."""
    rows = [row for row in map(cells, _complete_lines(text)) if len(row) == columns]
    devices = []
    for number, first in enumerate(rows):
        if not opens(first):
            continue
        second = rows[number + 1] if number + 1 < len(rows) else None
        if second is None or opens(second):
            raise NotUnderstood(f"the second line of the device {first[0]!r} is missing")
        devices.append((first, second))
    if not devices:
        raise refused(text, f"no device found in {tool}'s table")
    return devices


def two_line_readings(identity: list[str], load: list[str]) -> dict[str, object]:
    """Return the readings at the positions that several tools' tables have in common.

    The lines are ``| 0  NAME | 00000000:98:00.0 | ... |`` and ``| 30C  40W / 250W | 257MiB / 32768MiB | ... |``.
    """
    used, total = used_of_total(load[1], "MiB")
    return known(
        pci=pci(identity[1]),
        temperature=first(load[0], "C"),
        power=first(load[0], "W"),
        power_limit=limit(load[0], "W"),
        memory_used=used,
        memory_total=total,
    )


def computing(text: str, row: Pattern[str] = _PROCESS) -> dict[str, list[dict[str, object]]]:
    """Return the processes on each device, from the table of processes.

    ``row`` matches the text between a line's outer bars, with the groups ``device``, ``pid``, ``name`` and ``memory``
    (MiB).
    """
    processes: dict[str, list[dict[str, object]]] = {}
    inner = (line.strip()[1:-1].strip() for line in text.partition("Process")[2].splitlines() if line.startswith("|"))
    for match in (row.fullmatch(line) for line in inner if len(line) <= _LONGEST_ROW):
        if match:
            process = known(pid=int(match["pid"]), name=match["name"].strip(), memory=figure(match["memory"]))
            processes.setdefault(match["device"].strip(), []).append(process)
    return processes


def joined(devices: list[dict[str, object]], users: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    """Return each device with its processes."""
    return [{**device, **known(processes=users.get(str(device["device"])))} for device in devices]


def _complete_lines(text: str) -> list[str]:
    """Return the lines of a complete table; refuse a truncated one, whose missing devices would count as lost."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("|") and (line[-1] not in "|+" or line is lines[-1]):
            raise NotUnderstood(f"the table is truncated at {_quote(line)}")
    return lines


def after(label: str, text: str) -> str | None:
    """Return the word after a label in a heading, for example in ``Driver Version: 3.1.0``."""
    match = re.search(re.escape(label) + r":?\s*([^\s|]+)", text)
    return match[1] if match else None


def known(**readings: object) -> dict[str, object]:
    """Return the readings without missing ones, which the sampler then reports."""
    return {name: reading for name, reading in readings.items() if reading not in (None, "", [])}


def refused(text: str, problem: str) -> NotUnderstood:
    """Return an error that quotes the output, which often names the cause."""
    output = " ".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" \t+-=|*"))
    return NotUnderstood(f"{problem}; the output is {_quote(output) if output else 'empty'}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "...")
