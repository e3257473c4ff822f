"""The latest samples of the host and its devices, from the end of the sampler's files, for `flagperf watch`."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping

from flagperf_driver import layout

EVERY_S = 5.0
_TAIL_BYTES = 1 << 17
_OF_DEVICES = ("temperature", "power", "utilization", "memory_used", "memory_total")
_OF_HOST = ("cpu", "memory")
_DEVICE = "device"


class LatestSamples:
    """Reads the ends of the series; a quantity that was not sampled lately keeps its value."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[str, list[str]] = {}
        self._devices: dict[str, dict[str, float]] = {}
        self._host: dict[str, float] = {}

    def read(self) -> Mapping[str, Mapping[str, object]]:
        """Return the values of the host, and of each device by its index."""
        for row in self._rows(layout.HOST_SERIES):
            _take(row, _OF_HOST, self._host)
        for row in self._rows(layout.DEVICE_SERIES):
            _take(row, _OF_DEVICES, self._devices.setdefault(row[_DEVICE], {}))
        return {"host": self._host, "devices": self._devices}

    def _rows(self, name: str) -> Iterator[Mapping[str, str]]:
        """Yield the complete rows at the end of a file, by the names of its columns without their units."""
        try:
            with (self._folder / name).open("rb") as file:
                if name not in self._headers:
                    self._headers[name] = _columns(file.readline())
                file.seek(0, 2)
                start = max(0, file.tell() - _TAIL_BYTES)
                file.seek(start)
                lines = file.read(_TAIL_BYTES).split(b"\n")
        except OSError:
            return
        columns = self._headers[name]
        for line in lines[1:-1]:  # the first may be cut, or is the header, and the last is not complete yet
            cells = line.decode("ascii", "replace").split(",")
            if len(cells) == len(columns):
                yield dict(zip(columns, cells))


def _columns(header: bytes) -> list[str]:
    return [cell.partition(" [")[0].strip() for cell in header.decode("ascii", "replace").split(",")]


def _take(row: Mapping[str, str], names: tuple[str, ...], into: dict[str, float]) -> None:
    for name in names:
        if row.get(name):
            with suppress(ValueError):
                value = float(row[name])
                if math.isfinite(value):
                    into[name] = value
