"""Files that grow by complete lines and are readable at any time; only the last line may be truncated."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Mapping

TRUNCATED = b"#"
"""The end of a line that was truncated by a full disk."""
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STAMP = "%Y-%m-%d-%H:%M:%S"
"""Local time without a zone, as readers of these logs expect."""
FLUSH_S = 1.0
"""The interval at which lines are written."""


class Lines:
    """Buffer lines until ``flush``; count lines that cannot be written then as lost.

    ``flush`` calls ``format_line`` for each added value: formatting many values at once takes less time.
    """

    def __init__(self, path: str, header: str = "", format_line: Callable[[Any], str] = str) -> None:
        self.path = path
        self.lost = 0
        self.written = 0
        self.error = ""
        self._header = [header] if header else []
        self._buffered: list[Any] = []
        self._format_line = format_line
        self._truncated = False
        self._file = -1  # opened at the first flush, so that no empty file is created

    @property
    def loss(self) -> str:
        """A sentence on the lost lines; empty if no line was lost."""
        return f"{self.lost} lines of {os.path.basename(self.path)} were lost: {self.error}" if self.lost else ""  # noqa: PTH119

    def add(self, line: object) -> None:
        self._buffered.append(line)

    def flush(self) -> None:
        if not self._buffered:
            return
        lines = self._header + [self._format_line(line) for line in self._buffered]
        self._buffered, added = [], len(self._buffered)
        # Mark the end of a truncated line: it must neither swallow the next line nor look like a complete line.
        data = (TRUNCATED + b"\n" if self._truncated else b"") + ("\n".join(lines) + "\n").encode()
        try:
            if self._file < 0:
                self._file = os.open(self.path, _FRESH, 0o644)
            done = os.write(self._file, data)
        except OSError as error:
            done, self.error = 0, error.strerror or str(error)
        if done < len(data):
            self._truncated = self._truncated or done > 0
            self.lost += min(added, len(lines) - data[:done].count(b"\n"))
        else:
            self._truncated = False
        if done:
            self._header = []
            self.written += 1


def stamped(value: str) -> str:
    """Return a line of the host's logs in FlagPerf's original format: time, tab, value."""
    return f"{time.strftime(STAMP)}\t{value}"


def device_line(cells: Mapping[str, Any]) -> str:
    """Return a device's line of the vendor's log in FlagPerf's original format: ``31C 57W 15MiB 40536MiB 0%``."""
    units = (
        ("temperature", "C"),
        ("power", "W"),
        ("memory_used", "MiB"),
        ("memory_total", "MiB"),
        ("utilization", "%"),
    )
    return " ".join("N/A" if cells.get(name) is None else f"{round(cells[name])}{unit}" for name, unit in units)


def replace(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, in place of an earlier version."""
    temporary = path + ".new"
    with open(temporary, "w") as out:  # noqa: PTH123 - pathlib would be imported for this alone
        json.dump(content, out, indent=1)
    os.replace(temporary, path)  # noqa: PTH105
