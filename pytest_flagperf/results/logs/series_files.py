"""Read the sample files of a host: a row for each time and device."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from pytest_flagperf.printable import printable

from . import partial_read, ranges
from .ranges import DropCounter, Range
from .samples import Reasons, Series

_COLUMN = re.compile(r"(\w+)(?: \[(.*)\])?$")
_TRUNCATED = "#"
"""The last character of a line that was truncated because the disk was full."""


class SampleTable:
    """The rows of one device or of the host."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        device: int | None,
        allowed: Mapping[str, Range],
        dropped: DropCounter,
    ) -> None:
        self.times = array("d")
        self._device, self._dropped = device, dropped
        first = 1 if device is None else 2
        self._reasons: dict[str, int] = {}
        self._held_times, self._held_codes = array("d"), array("H")
        self._columns = [
            (place, name, unit, array("d"), array("d"), allowed.get(name, ranges.ANY_NUMBER))
            for place, (name, unit) in enumerate(columns)
        ]
        self._numbers = [column for column in self._columns[first:] if column[1] != "throttle"]
        self._throttle = next((place for place, name, *_ in self._columns if name == "throttle"), None)

    def add(self, when: float, cells: Sequence[str]) -> None:
        """Add a row; raise ValueError if a cell is not a number."""
        self.times.append(when)
        for place, name, _, times, values, allowed in self._numbers:
            if not cells[place]:
                continue
            value = float(cells[place])
            if allowed.low <= value <= allowed.high:
                values.append(value)
                times.append(when)
            else:
                self._dropped.drop(self._device, name, value, allowed)
        if self._throttle is not None and cells[self._throttle]:
            self._hold(when, cells[self._throttle])

    def _hold(self, when: float, reasons: str) -> None:
        self._held_times.append(when)
        self._held_codes.append(self._reasons.setdefault(reasons, len(self._reasons)))

    def series(self) -> dict[str, Series]:
        columns = [column for column in self._columns if column[4]]
        series = {name: Series(name, unit, times, values) for _, name, unit, times, values, _ in columns}
        return series if self._device is None else _within_total(series, self._device, self._dropped)

    def reasons(self) -> Reasons:
        return Reasons(self._held_times, self._held_codes, tuple(map(printable, self._reasons)))


def read_series(
    path: Path, offset: float, at_most: float, dropped: DropCounter, power_limits: Mapping[int, float]
) -> dict[int | None, SampleTable]:
    """Return a table for each device (None: the host); truncated rows are skipped."""
    tables: dict[int | None, SampleTable] = {}
    if not path.is_file():
        return tables
    source = (line.decode("utf-8", "replace") for line in partial_read.read_lines(path, at_most))
    columns = [_column(printable(text)) for text in next(source, "").rstrip("\n").split(",")]
    of_devices = columns[1:2] == [("device", "")]
    for line in source:
        cells = line[:-1].split(",")
        if len(cells) != len(columns) or line[-1] != "\n" or line[-2:-1] == _TRUNCATED:
            continue
        try:
            when, device = float(cells[0]) - offset, int(cells[1]) if of_devices else None
            if not isfinite(when):
                continue
            if device not in tables:
                allowed = (
                    {**ranges.HOST, **ranges.LOAD} if device is None else ranges.of_device(power_limits.get(device))
                )
                tables[device] = SampleTable(columns, device, allowed, dropped)
            tables[device].add(when, cells)
        except ValueError:
            continue
    return tables


def _within_total(by_name: dict[str, Series], device: int, dropped: DropCounter) -> dict[str, Series]:
    """Drop readings of more used memory than the device has."""
    used, total = by_name.get("memory_used"), by_name.get("memory_total")
    if used is None or total is None or used.highest <= total.highest:
        return by_name
    allowed = Range(0, total.highest, used.unit)
    for value in used.values:
        if value not in allowed:
            dropped.drop(device, used.name, value, allowed)
    kept = [(when, value) for when, value in zip(used.times, used.values, strict=True) if value in allowed]
    if not kept:
        return {name: series for name, series in by_name.items() if name != used.name}
    times, values = array("d", [when for when, _ in kept]), array("d", [value for _, value in kept])
    return {**by_name, used.name: Series(used.name, used.unit, times, values)}


def _column(text: str) -> tuple[str, str]:
    """A column's name and unit."""
    match = _COLUMN.match(text)
    return (match.group(1), match.group(2) or "") if match else (text, "")
