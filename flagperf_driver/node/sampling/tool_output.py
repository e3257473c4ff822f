"""What vendors' tools print for people, taken apart: figures with their units, and tables drawn with + - and |."""

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
    """It is not what the tool prints when all is well."""


def figure(text: object, *units: str) -> float | None:
    """``109.51W`` is 109.51; None for what is no figure (NA, N/A, -), or has another unit: a part of one, when cut."""
    match = _FIGURE.match(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in [unit.lower() for unit in units or ("",)]:
        return None
    return float(match[1])


def first(text: str, unit: str) -> float | None:
    """The first figure with that unit; what stands behind a slash is a limit."""
    match = re.search(rf"(?<![/0-9.])(?<!/ )([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*{unit}\b", text, re.ASCII)
    return float(match[1]) if match else None


def pci(text: object) -> str | None:
    """The address on the bus that begins a text; by it a host knows which of its cores are near."""
    match = _PCI.match(text.strip()) if isinstance(text, str) else None
    return match[0] if match else None


def limit(text: str, unit: str) -> float | None:
    """The figure behind the last slash, of ``N/A / 350W``."""
    _, slash, last = text.rpartition("/")
    return figure(last, unit) if slash else None


def used_of_total(text: str, *units: str) -> tuple[float | None, float | None]:
    """Both of ``914/65536 MiB`` and of ``0 MiB / 23374 MiB``."""
    used, _, total = text.partition("/")
    return figure(used, "", *units), figure(total, *units)


def index(text: str) -> int | None:
    """A device's number, where there is nothing else in the cell."""
    word = text.strip()
    return int(word) if _INDEX.fullmatch(word) else None


def cells(line: str) -> list[str]:
    """What stands between a table's bars; nothing of a line that is no row."""
    line = line.strip()
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") and line.endswith("|") else []


def table(text: str, *head: str) -> list[list[str]]:
    """The cells of each device's one line, which its number begins; below other headings nothing is guessed."""
    rows = [row for row in map(cells, _whole(text)) if any(row)]
    if list(head) not in rows:
        raise refused(text, "no table of " + ", ".join(head))
    found = rows[rows.index(list(head)) + 1 :]
    wrong = [row for row in found if len(row) != len(head) or index(row[0]) is None]
    if wrong:
        raise NotUnderstood(f"{_quoted(' | '.join(wrong[0]))} is no device's line: {len(head)} cells are wanted")
    if not found:
        raise refused(text, "no device below the headings")
    return found


def two_lines(
    text: str, tool: str, columns: int, opens: Callable[[list[str]], bool]
) -> list[tuple[list[str], list[str]]]:
    """The cells of both lines of each device, where a device has two; ``opens`` knows a first one."""
    rows = [row for row in map(cells, _whole(text)) if len(row) == columns]
    found = []
    for number, first in enumerate(rows):
        if not opens(first):
            continue
        second = rows[number + 1] if number + 1 < len(rows) else None
        if second is None or opens(second):
            raise NotUnderstood(f"the second line of the device {first[0]!r} is missing")
        found.append((first, second))
    if not found:
        raise refused(text, f"no device of {tool}'s table")
    return found


def two_line_readings(what: list[str], load: list[str]) -> dict[str, object]:
    """The readings at the places that several tools' tables share.

    ``| 0  NAME | 00000000:98:00.0 | ... |`` stands above ``| 30C  40W / 250W | 257MiB / 32768MiB | ... |``.
    """
    used, total = used_of_total(load[1], "MiB")
    return known(
        pci=pci(what[1]),
        temperature=first(load[0], "C"),
        power=first(load[0], "W"),
        power_limit=limit(load[0], "W"),
        memory_used=used,
        memory_total=total,
    )


def computing(text: str, row: Pattern[str] = _PROCESS) -> dict[str, list[dict[str, object]]]:
    """By ``device``, who computes on it: from the lines of the table of processes, of which ``row`` names the parts.

    These are ``device``, ``pid``, ``name`` and ``memory`` (MiB); what stands between a line's outer bars is matched.
    """
    found: dict[str, list[dict[str, object]]] = {}
    inner = (line.strip()[1:-1].strip() for line in text.partition("Process")[2].splitlines() if line.startswith("|"))
    for match in (row.fullmatch(line) for line in inner if len(line) <= _LONGEST_ROW):
        if match:
            who = known(pid=int(match["pid"]), name=match["name"].strip(), memory=figure(match["memory"]))
            found.setdefault(match["device"].strip(), []).append(who)
    return found


def joined(found: list[dict[str, object]], users: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    """Each device with who computes on it."""
    return [{**each, **known(processes=users.get(str(each["device"])))} for each in found]


def _whole(text: str) -> list[str]:
    """Its lines, if the table is: of one cut short, the devices behind the cut would count as lost."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("|") and (line[-1] not in "|+" or line is lines[-1]):
            raise NotUnderstood(f"the table ends at {_quoted(line)}")
    return lines


def after(label: str, text: str) -> str | None:
    """The word that follows a label in a heading, as in ``Driver Version: 3.1.0``."""
    match = re.search(re.escape(label) + r":?\s*([^\s|]+)", text)
    return match[1] if match else None


def known(**readings: object) -> dict[str, object]:
    """Without those that the tool did not give: a figure that is missing is told, one that is None is none."""
    return {name: reading for name, reading in readings.items() if reading not in (None, "", [])}


def refused(text: str, wanted: str) -> NotUnderstood:
    """An error that quotes what was printed instead: often it says what is wrong."""
    said = " ".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" \t+-=|*"))
    return NotUnderstood(f"there is {wanted} in it; " + (f"it says {_quoted(said)}" if said else "it is empty"))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "...")
