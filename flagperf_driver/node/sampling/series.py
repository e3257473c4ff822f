"""Files that grow by whole lines, readable at any moment: what a kill or a full disk cuts short is the last line."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Mapping

CUT = b"#"
"""The end of a line that a full disk cut short."""
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
STAMP = "%Y-%m-%d-%H:%M:%S"
"""Local time without a zone, as the readers of these logs expect."""
FLUSH_S = 1.0
"""How often lines are written."""


class Lines:
    """Lines are kept until ``flush``; those that cannot be written then are lost, and counted.

    ``form`` makes a line of what was added, at the flush: many at once take less than each at its time, when the
    processor has forgotten how.
    """

    def __init__(self, path: str, header: str = "", form: Callable[[Any], str] = str) -> None:
        self.path = path
        self.lost = 0
        self.written = 0
        self.why = ""
        self._header = [header] if header else []
        self._kept: list[Any] = []
        self._form = form
        self._torn = False
        self._file = -1  # until there is something to write: no file is left empty

    @property
    def loss(self) -> str:
        """A sentence on the lines that were lost; empty where none was."""
        return f"{self.lost} lines of {os.path.basename(self.path)} were lost: {self.why}" if self.lost else ""  # noqa: PTH119

    def add(self, line: object) -> None:
        self._kept.append(line)

    def flush(self) -> None:
        if not self._kept:
            return
        lines = self._header + [self._form(line) for line in self._kept]
        self._kept, added = [], len(self._kept)
        # What was cut short ends here, marked: it must not swallow the next line, nor pass for a whole one.
        data = (CUT + b"\n" if self._torn else b"") + ("\n".join(lines) + "\n").encode()
        try:
            if self._file < 0:
                self._file = os.open(self.path, _FRESH, 0o644)
            done = os.write(self._file, data)
        except OSError as error:
            done, self.why = 0, error.strerror or str(error)
        if done < len(data):
            self._torn = self._torn or done > 0
            self.lost += min(added, len(lines) - data[:done].count(b"\n"))
        else:
            self._torn = False
        if done:
            self._header = []
            self.written += 1


def stamped(value: str) -> str:
    """A line of the original's logs of the host: time, tab, value."""
    return f"{time.strftime(STAMP)}\t{value}"


def device_line(cells: Mapping[str, Any]) -> str:
    """A device's line in the original's log of its vendor: ``31C 57W 15MiB 40536MiB 0%``."""
    units = (
        ("temperature", "C"),
        ("power", "W"),
        ("memory_used", "MiB"),
        ("memory_total", "MiB"),
        ("utilization", "%"),
    )
    return " ".join("N/A" if cells.get(name) is None else f"{round(cells[name])}{unit}" for name, unit in units)


def replace(path: str, content: Mapping[str, Any]) -> None:
    """A whole JSON file in place of the one before, or none."""
    temporary = path + ".new"
    with open(temporary, "w") as out:  # noqa: PTH123 - pathlib would be imported for this alone
        json.dump(content, out, indent=1)
    os.replace(temporary, path)  # noqa: PTH105
