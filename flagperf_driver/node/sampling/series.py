"""Files that grow by complete lines and are readable at any time; only the last line may be truncated."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Tuple

from flagperf_driver import layout

TRUNCATED = b"#"
"""The end of a line that was truncated by a full disk."""
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STAMP = "%Y-%m-%d-%H:%M:%S"
"""Local time without a zone, as readers of these logs expect."""
FLUSH_S = 1.0
"""The interval at which lines are written."""
_TAIL_BYTES = 3 << 14  # more than five seconds of eight devices at 10 Hz
_OF_DEVICES = ("temperature", "power", "utilization", "memory_used", "memory_total")
_OF_HOST = ("cpu", "memory")
_DEVICE = "device"

Latest = Dict[Tuple[str, str], float]


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


# -- reading the ends --------------------------------------------------------------------------------------


class LatestSamples:
    """Reads the ends of the series; a quantity that was not sampled lately keeps its value."""

    def __init__(self, folder: Path) -> None:
        self._host = _SeriesEnd(folder / layout.HOST_SERIES, _OF_HOST)
        self._devices = _SeriesEnd(folder / layout.DEVICE_SERIES, _OF_DEVICES)

    def read(self) -> Mapping[str, Mapping[str, object]]:
        """Return the values of the host, and of each device by its index."""
        devices: dict[str, dict[str, float]] = {}
        for (device, name), value in self._devices.read().items():
            devices.setdefault(device, {})[name] = value
        return {"host": {name: value for (_, name), value in self._host.read().items()}, "devices": devices}


class _SeriesEnd:
    """The latest value of each quantity in a series, by device; a host's series has no devices."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._names = names
        self._header: list[str] = []
        self._latest: Latest = {}

    def read(self) -> Latest:
        lines = self._lines()
        if not self._header:
            return self._latest
        device = self._header.index(_DEVICE) if _DEVICE in self._header else None
        columns = [(self._header.index(name), name) for name in self._names if name in self._header]
        found: Latest = {}
        for line in reversed(lines):
            cells = line.split(b",")
            if len(cells) != len(self._header):
                continue
            index = "" if device is None else cells[device].decode("ascii", "replace")
            for column, name in columns:
                if cells[column] and (index, name) not in found:
                    value = _number(cells[column])
                    if math.isfinite(value):
                        found[index, name] = value
            if len(found) >= len(self._latest) > 0 and self._latest.keys() <= found.keys():
                break
        self._latest.update(found)
        return self._latest

    def _lines(self) -> list[bytes]:
        """Return the complete rows at the end of the file."""
        try:
            with self._path.open("rb") as file:
                if not self._header:
                    header = file.readline().decode("ascii", "replace")
                    columns = [cell.partition(" [")[0].strip() for cell in header.split(",")]
                    self._header = columns if header.endswith("\n") else []
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                # The first line may be cut, or is the header, and the last one is not complete yet.
                return file.read(_TAIL_BYTES).split(b"\n")[1:-1]
        except OSError:
            return []


def _number(cell: bytes) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
