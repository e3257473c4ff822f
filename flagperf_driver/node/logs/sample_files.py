"""Read the samples of a host and its devices from the files in its folder of a round."""

from __future__ import annotations

import re
from array import array
from math import inf, isfinite
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from flagperf_driver.layout import DEVICE_SERIES, HOST_SERIES, LOAD_SERIES
from flagperf_driver.node.logs import partial_read, ranges
from flagperf_driver.node.logs.ranges import DropCounter, Range
from flagperf_driver.node.logs.samples import Event, Reasons, Samples, Series, find_gaps
from flagperf_driver.perflog import number

_COLUMN = re.compile(r"(\w+)(?: \[(.*)\])?$")
_TRUNCATED = "#"
"""The last character of a line that was truncated because the disk was full."""
Report = Mapping[str, Any]
"""The content of monitors.json."""


def read_samples(
    folder: Path,
    report: Report,
    offset: float,
    at_most: float = inf,
    printable: Callable[[str], str] = str,
) -> Samples:
    """Read the samples of a host from its folder; only parts of a series of more than ``at_most`` bytes.

    ``report`` is the sampler's own; ``printable`` escapes texts of the files. ``offset`` is subtracted from all times.
    """
    paths = folder / HOST_SERIES, folder / DEVICE_SERIES
    drops, limits = DropCounter(), _power_limits(report)
    host, devices, load = (
        read_series(path, offset, at_most, drops, limits, printable) for path in (*paths, folder / LOAD_SERIES)
    )
    is_partial = any(path.is_file() and path.stat().st_size > at_most for path in paths)
    return Samples(
        host=host[None].series() if None in host else {},
        devices={index: table.series() for index, table in devices.items() if index is not None},
        held={index: table.reasons(printable) for index, table in devices.items() if index is not None},
        gaps=()
        if is_partial
        else tuple(find_gaps((device, table.times) for device, table in [*host.items(), *devices.items()])),
        events=tuple(events_of(report, offset)),
        missing=tuple(map(str, _list(report, "missing"))),
        errors=tuple(_errors(report)),
        load=load[None].series() if None in load else {},
        means={str(name): str(means) for name, means in _dict(report, "means").items()},
        dropped=drops.dropped(),
        is_partial=is_partial,
    )


def _list(report: Report, name: str) -> list[Any]:
    value = report.get(name)
    return value if isinstance(value, list) else []


def _dict(report: Report, name: str) -> Mapping[str, Any]:
    value = report.get(name)
    return value if isinstance(value, dict) else {}


def _power_limits(report: Report) -> dict[int, float]:
    """The largest power limit of each device, in W."""
    by_device: dict[int, float] = {}
    for facts in _list(report, "devices"):
        if isinstance(facts, dict) and isinstance(facts.get("index"), int):
            limits = [number(facts.get(name)) for name in ("power_limit", "usual_power_limit")]
            by_device[facts["index"]] = max((limit for limit in limits if isfinite(limit)), default=0.0)
    return by_device


def events_of(report: Report, offset: float) -> Iterator[Event]:
    for entry in _list(report, "events"):
        if isinstance(entry, dict) and isfinite(when := number(entry.get("time"))):
            device, kind = entry.get("device"), entry.get("kind")
            yield Event(
                when - offset,
                device if isinstance(device, int) else None,
                str(entry.get("sentence")),
                kind if isinstance(kind, str) else None,
                number(entry.get("seconds", 0.0)),
            )


def _errors(report: Report) -> Iterator[str]:
    for entry in _list(report, "errors"):
        if isinstance(entry, dict):
            yield f"{entry.get('sentence')} ({entry.get('times')} times)"
    yield from map(str, _list(report, "lost_lines"))


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

    def reasons(self, printable: Callable[[str], str] = str) -> Reasons:
        return Reasons(self._held_times, self._held_codes, tuple(map(printable, self._reasons)))


def read_series(
    path: Path,
    offset: float,
    at_most: float,
    dropped: DropCounter,
    power_limits: Mapping[int, float],
    printable: Callable[[str], str] = str,
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
    kept = [(when, value) for when, value in zip(used.times, used.values) if value in allowed]
    if not kept:
        return {name: series for name, series in by_name.items() if name != used.name}
    times, values = array("d", [when for when, _ in kept]), array("d", [value for _, value in kept])
    return {**by_name, used.name: Series(used.name, used.unit, times, values)}


def _column(text: str) -> tuple[str, str]:
    """A column's name and unit."""
    match = _COLUMN.match(text)
    return (match.group(1), match.group(2) or "") if match else (text, "")
