"""The latest samples of the host and its devices, from the end of the sampler's files, for `flagperf watch`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, Mapping, Tuple

from flagperf_driver import layout

EVERY_S = 5.0
_TAIL_BYTES = 3 << 14  # more than five seconds of eight devices at 10 Hz
_OF_DEVICES = ("temperature", "power", "utilization", "memory_used", "memory_total")
_OF_HOST = ("cpu", "memory")
_DEVICE = "device"

Latest = Dict[Tuple[str, str], float]


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
