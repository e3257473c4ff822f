"""Files that grow by whole lines, readable at any moment: what a kill or a full disk cuts short is the last line."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Mapping

STAMP = "%Y-%m-%d-%H:%M:%S"
"""Local time without a zone, as the readers of these logs expect."""


class Lines:
    """Lines are kept until ``flush``; those that cannot be written then are lost, and counted."""

    def __init__(self, path: str, header: str = "") -> None:
        self.path = path
        self.lost = 0
        self.written = 0
        self.why = ""
        self._kept = [header] if header else []
        self._torn = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, line: str) -> None:
        self._kept.append(line)

    def flush(self) -> None:
        if not self._kept:
            return
        lines, self._kept = self._kept, []
        # What was cut short ends here: it must not swallow the next line.
        data = (b"\n" if self._torn else b"") + ("\n".join(lines) + "\n").encode()
        try:
            done = os.write(self._file, data)
        except OSError as error:
            done, self.why = 0, error.strerror or str(error)
        if done < len(data):
            self._torn = self._torn or done > 0
            self.lost += len(lines) - data[:done].count(b"\n")
        else:
            self._torn = False
        self.written += 1


def stamped(value: str) -> str:
    """A line of the original's logs of the host: time, tab, value."""
    return f"{time.strftime(STAMP)}\t{value}"


def device_line(cells: Mapping[str, str]) -> str:
    """A device's line in the original's log of its vendor: ``31C 57W 15MiB 40536MiB 0%``."""
    units = (
        ("temperature", "C"),
        ("power", "W"),
        ("memory_used", "MiB"),
        ("memory_total", "MiB"),
        ("utilization", "%"),
    )
    return " ".join(_rounded(cells[name]) + unit if cells.get(name) else "N/A" for name, unit in units)


def _rounded(cell: str) -> str:
    return str(round(float(cell)))


def replace(path: str, content: Mapping[str, Any]) -> None:
    """A whole JSON file in place of the one before, or none."""
    temporary = path + ".new"
    with open(temporary, "w") as out:  # noqa: PTH123 - pathlib would be imported for this alone
        json.dump(content, out, indent=1)
    os.replace(temporary, path)  # noqa: PTH105
