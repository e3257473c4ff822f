"""What was sampled on the hosts and their devices while a round ran, from the files of its directory.

Times are seconds since the epoch by the clock of the machine that the harness ran on: a host's measured offset is
taken off.
"""

from __future__ import annotations

import re
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, isinf
from pathlib import Path
from typing import Any, TypedDict

from flagperf_driver.node.sampling.notes import KINDS
from flagperf_driver.perflog import number
from pytest_flagperf.printable import printable
from pytest_flagperf.results import jsons

from . import ranges, skim, typed
from .ranges import Dropped, Range, Sieve

HOST_SERIES, DEVICE_SERIES, REPORT = "host.series.csv", "devices.series.csv", "monitors.json"
LOAD_SERIES = "load.series.csv"
_COLUMN = re.compile(r"(\w+)(?: \[(.*)\])?$")
_MEANS = {"net": "network", "disk": "disk", "rdma": "rdma"}
_CUT = "#"
"""The last sign of a line that a full disk cut short."""
_HOLE = 2.5
"""So many intervals between two samples are a gap."""


class DeviceReport(TypedDict, total=False):
    """What is read of a device in monitors.json."""

    index: int
    name: str | None
    memory_total: float | None
    firmware: str | None
    power_limit: float | None
    usual_power_limit: float | None
    links: float | None
    best_pcie_generation: float | None
    pcie_width: float | None


class Report(TypedDict, total=False):
    """What is read of monitors.json; the lists of events and errors are looked through entry by entry."""

    host: dict[str, str] | None
    devices: list[DeviceReport] | None
    driver: str | None
    means: dict[str, str] | None
    missing: list[str] | None


@dataclass(frozen=True)
class Series:
    """One quantity over time."""

    name: str
    unit: str
    times: Sequence[float]
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    def between(self, start: float, end: float) -> Series:
        """The samples of that time."""
        there = _span(self.times, start, end)
        return Series(self.name, self.unit, self.times[there], self.values[there])


@dataclass(frozen=True)
class Reasons:
    """Why a device's clocks were held back, sample by sample; ``codes`` are places in ``names``."""

    times: Sequence[float]
    codes: Sequence[int]
    names: Sequence[str]
    """Each of one reason, of several joined by "+", or "none"."""

    def shares(self) -> dict[str, float]:
        """By reason: in which share of the samples it held."""
        found: Counter[str] = Counter()
        for code, times in Counter(self.codes).items():
            found.update(dict.fromkeys(self.names[code].split("+"), times))
        return {reason: times / len(self.codes) for reason, times in sorted(found.items()) if reason != "none"}

    def between(self, start: float, end: float) -> Reasons:
        there = _span(self.times, start, end)
        return Reasons(self.times[there], self.codes[there], self.names)


@dataclass(frozen=True)
class Gap:
    """A time in which something was not sampled."""

    start: float
    seconds: float
    devices: tuple[int, ...] = ()
    """Which of them, where the host itself was."""


@dataclass(frozen=True)
class Event:
    """Something that happened to the sampling or to what was sampled."""

    time: float
    device: int | None
    sentence: str
    kind: str | None = None
    """One of ``notes.KINDS`` where it bends the figures of the round."""
    seconds: float = 0.0
    """By how much a clock was set."""


@dataclass(frozen=True)
class Energy:
    """What a device used, in J; ``covered`` is the share of the time that was really sampled."""

    joules: float
    how: str
    covered: float


@dataclass(frozen=True)
class Samples:
    """One host's."""

    host: Mapping[str, Series]
    devices: Mapping[int, Mapping[str, Series]] = field(default_factory=dict)
    held: Mapping[int, Reasons] = field(default_factory=dict)
    """By device, of those that tell."""
    gaps: tuple[Gap, ...] = ()
    events: tuple[Event, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict)
    """By quantity: what it was read with."""
    load: Mapping[str, Series] = field(default_factory=dict)
    """Counters of who had the cores: ``flagperf_driver.node.sampling.load``."""
    dropped: tuple[Dropped, ...] = ()
    """The readings that were outside their ranges, and are in no series."""
    skimmed: bool = False
    """Whether there is more than was read: a hole between samples is no gap then."""

    def read_from(self, name: str) -> str:
        """Where a quantity's figures are from, as far as is known."""
        return self.means.get(_MEANS.get(name.partition("_")[0], name), "")

    @property
    def throttle(self) -> dict[int, dict[str, float]]:
        """By device and reason: the share of its samples in which the clocks were held back."""
        return {device: held.shares() for device, held in self.held.items()}

    def energy(self, device: int, start: float = -inf, end: float = inf) -> Energy | None:
        """Of that time: from its counter where it has one, else from its power."""
        found = self.devices.get(device, {})
        return _counted(found.get("energy"), start, end) or _integral(found.get("power"), start, end)

    def energy_both_ways(self, device: int, start: float = -inf, end: float = inf) -> tuple[Energy, Energy] | None:
        """By its counter and by its power, of a device that has both."""
        found = self.devices[device]
        counted, integral = _counted(found.get("energy"), start, end), _integral(found.get("power"), start, end)
        return (counted, integral) if counted and integral else None

    def host_energy(self, start: float = -inf, end: float = inf) -> Energy | None:
        """Of the host in that time, as much of it as its power is of: see ``read_from``."""
        power, counter = self.host.get("power"), self.host.get("energy")
        return _counted(counter, start, end, "the processors' own counters") or _integral(power, start, end)

    def grown(self, name: str, start: float, end: float) -> float | None:
        """By how much a counter of the load grew; in what was not sampled of the time, as fast as in the rest."""
        counted = _counted(self.load.get(name), start, end)
        return counted.joules / counted.covered if counted is not None and counted.covered else None

    def between(self, start: float, end: float) -> Samples:
        """What was sampled in that time; nothing before the first sample or after the last is a gap too."""
        devices = {device: _within(series, start, end) for device, series in self.devices.items()}
        return replace(
            self,
            host=_within(self.host, start, end),
            devices={device: series for device, series in devices.items() if series},
            held={device: found for device, held in self.held.items() if (found := held.between(start, end)).codes},
            gaps=tuple(_gaps(self._ticks(), start, end)),
            events=tuple(event for event in self.events if start <= event.time <= end),
        )

    def _ticks(self) -> Iterator[tuple[int | None, Sequence[float]]]:
        """When the host and each device were looked at: the times of what is sampled most often."""
        for device, found in [(None, self.host), *self.devices.items()]:
            if found:
                yield device, max((series.times for series in found.values()), key=len)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know, in sentences."""
        lost = sum(gap.seconds for gap in self.gaps)
        gaps = [f"{len(self.gaps)} gaps of {lost:.1f} s in all between the samples"] if self.gaps else []
        return [*(event.sentence for event in self.events), *gaps, *self.errors, *self.missing]


def _within(found: Mapping[str, Series], start: float, end: float) -> dict[str, Series]:
    cut = {name: series.between(start, end) for name, series in found.items()}
    return {name: series for name, series in cut.items() if len(series.values)}


def _span(times: Sequence[float], start: float, end: float) -> slice:
    return slice(bisect_left(times, start), bisect_right(times, end))


def warnings(round_dir: Path) -> list[str]:
    """What happened to hosts and devices while they were sampled, but for what marks the round; reads no figure."""
    return [
        f"{host_of(folder.name)}: {event.sentence}"
        for folder in _folders(round_dir)
        for event in _events(_report(folder), 0.0)
        if event.kind not in KINDS
    ]


def dropped(samples: Mapping[str, Samples]) -> list[str]:
    """Sentences on the readings that no host and no device can have."""
    return [text for folder, found in samples.items() for text in ranges.sentences(host_of(folder), found.dropped)]


def host_of(folder: str) -> str:
    return folder.rpartition("_noderank")[0]


def reports(round_dir: Path) -> dict[str, Mapping[str, Any]]:
    """By host folder, what its sampler said of itself, the host and the devices."""
    return {folder.name: _report(folder) for folder in _folders(round_dir)}


def _folders(round_dir: Path) -> list[Path]:
    return sorted(path for path in round_dir.glob("*_noderank*") if path.is_dir())


def read(round_dir: Path, at_most: float = inf) -> dict[str, Samples]:
    """By host folder; of a series of more than ``at_most`` bytes parts that show its course."""
    offsets = _offsets(round_dir)
    return {
        folder.name: _host(folder, offsets.get(folder.name.rpartition("_noderank")[2], 0.0), at_most)
        for folder in _folders(round_dir)
    }


def _offsets(round_dir: Path) -> dict[str, float]:
    """By node rank: how far the host's clock was ahead of ours."""
    try:
        hosts = jsons.read(round_dir / "plan.json").get("hosts")
    except jsons.FormatError:
        return {}
    entries = enumerate(hosts) if isinstance(hosts, list) else ()
    found = {str(rank): entry.get("clock_offset_s") for rank, entry in entries if isinstance(entry, dict)}
    return {rank: offset for rank, value in found.items() if isfinite(offset := number(value))}


def _host(folder: Path, offset: float, at_most: float) -> Samples:
    report = _report(folder)
    paths = folder / HOST_SERIES, folder / DEVICE_SERIES
    sieve, limits = Sieve(), _power_limits(report)
    host, devices, load = (
        _read_series(path, offset, at_most, sieve, limits) for path in (*paths, folder / LOAD_SERIES)
    )
    skimmed = any(path.is_file() and path.stat().st_size > at_most for path in paths)
    return Samples(
        host=host[None].series() if None in host else {},
        devices={index: found.series() for index, found in devices.items() if index is not None},
        held={index: found.reasons() for index, found in devices.items() if index is not None},
        gaps=()
        if skimmed
        else tuple(_gaps((device, table.times) for device, table in [*host.items(), *devices.items()])),
        events=tuple(_events(report, offset)),
        missing=tuple(map(str, _list(report, "missing"))),
        errors=tuple(_errors(report)),
        load=load[None].series() if None in load else {},
        means={str(name): str(means) for name, means in _dict(report, "means").items()},
        dropped=sieve.dropped(),
        skimmed=skimmed,
    )


# -- the series ----------------------------------------------------------------------------------------------


class _Table:
    """The rows of one device, or of the host."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        device: int | None,
        allowed: Mapping[str, Range],
        sieve: Sieve,
    ) -> None:
        self.times = array("d")
        self._device, self._sieve = device, sieve
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
        """Raises ValueError where a cell is no number."""
        self.times.append(when)
        for place, name, _, times, values, allowed in self._numbers:
            if not cells[place]:
                continue
            value = float(cells[place])
            if allowed.low <= value <= allowed.high:
                values.append(value)
                times.append(when)
            else:
                self._sieve.drop(self._device, name, value, allowed)
        if self._throttle is not None and cells[self._throttle]:
            self._hold(when, cells[self._throttle])

    def _hold(self, when: float, reasons: str) -> None:
        self._held_times.append(when)
        self._held_codes.append(self._reasons.setdefault(reasons, len(self._reasons)))

    def series(self) -> dict[str, Series]:
        found = {name: Series(name, unit, times, values) for _, name, unit, times, values, _ in self._columns if values}
        return found if self._device is None else _within_total(found, self._device, self._sieve)

    def reasons(self) -> Reasons:
        return Reasons(self._held_times, self._held_codes, tuple(map(printable, self._reasons)))


def _read_series(
    path: Path, offset: float, at_most: float, sieve: Sieve, power_limits: Mapping[int, float]
) -> dict[int | None, _Table]:
    """By device, None for the host itself; a row cut short by a kill or a full disk is passed over."""
    found: dict[int | None, _Table] = {}
    if not path.is_file():
        return found
    source = (line.decode("utf-8", "replace") for line in skim.lines(path, at_most))
    columns = [_column(printable(text)) for text in next(source, "").rstrip("\n").split(",")]
    of_devices = columns[1:2] == [("device", "")]
    for line in source:
        cells = line[:-1].split(",")
        if len(cells) != len(columns) or line[-1] != "\n" or line[-2:-1] == _CUT:
            continue
        try:
            when, device = float(cells[0]) - offset, int(cells[1]) if of_devices else None
            if not isfinite(when):
                continue
            if device not in found:
                allowed = (
                    {**ranges.HOST, **ranges.LOAD} if device is None else ranges.of_device(power_limits.get(device))
                )
                found[device] = _Table(columns, device, allowed, sieve)
            found[device].add(when, cells)
        except ValueError:
            continue
    return found


def _within_total(found: dict[str, Series], device: int, sieve: Sieve) -> dict[str, Series]:
    """Without the readings of more memory in use than the device has."""
    used, total = found.get("memory_used"), found.get("memory_total")
    if used is None or total is None or used.highest <= total.highest:
        return found
    allowed = Range(0, total.highest, used.unit)
    for value in used.values:
        if value not in allowed:
            sieve.drop(device, used.name, value, allowed)
    kept = [(when, value) for when, value in zip(used.times, used.values, strict=True) if value in allowed]
    times, values = array("d", [when for when, _ in kept]), array("d", [value for _, value in kept])
    return {**found, used.name: Series(used.name, used.unit, times, values)} if kept else _without(found, used.name)


def _without(found: Mapping[str, Series], name: str) -> dict[str, Series]:
    return {other: series for other, series in found.items() if other != name}


def _column(text: str) -> tuple[str, str]:
    """A column's name and unit."""
    match = _COLUMN.match(text)
    return (match.group(1), match.group(2) or "") if match else (text, "")


def _gaps(tables: Iterable[tuple[int | None, Sequence[float]]], start: float = -inf, end: float = inf) -> list[Gap]:
    """Of the host and its devices; what several missed at a time is one gap."""
    each = (gap for device, times in tables for gap in _gaps_of(device, times, start, end))
    found: list[Gap] = []
    for gap in sorted(each, key=lambda gap: gap.start):
        last = found[-1] if found else None
        if last is None or gap.start >= last.start + last.seconds:
            found.append(gap)
        else:
            end = max(last.start + last.seconds, gap.start + gap.seconds)
            both = tuple(sorted({*last.devices, *gap.devices})) if last.devices and gap.devices else ()
            found[-1] = Gap(last.start, end - last.start, both)
    return found


def _gaps_of(device: int | None, times: Sequence[float], start: float, end: float) -> Iterator[Gap]:
    """Between those ends, if there are any, which stand for samples."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    least = _HOLE * statistics.median(steps) if len(steps) > 2 else inf
    inside = [*_finite(start), *times[_span(times, start, end)], *_finite(end)]
    for earlier, later in pairwise(inside):
        if later - earlier > least:
            yield Gap(earlier, later - earlier, () if device is None else (device,))


def _finite(edge: float) -> list[float]:
    return [edge] if isfinite(edge) else []


# -- energy --------------------------------------------------------------------------------------------------


def _counted(
    counter: Series | None, start: float = -inf, end: float = inf, how: str = "the device's own counter"
) -> Energy | None:
    """Its counter's growth; between two samples it grew evenly. A counter that was set back has lost count."""
    if counter is None or len(counter.values) < 2:
        return None
    begin, finish = max(start, counter.times[0]), min(end, counter.times[-1])
    first = max(bisect_right(counter.times, begin) - 1, 0)
    last = min(bisect_left(counter.times, finish), len(counter.times) - 1)
    if finish <= begin or any(later < earlier for earlier, later in pairwise(counter.values[first : last + 1])):
        return None
    joules = _at(counter, last - 1, finish) - _at(counter, first, begin)
    return Energy(joules, how, _share(finish - begin, start, end, counter.times))


def _integral(power: Series | None, start: float = -inf, end: float = inf) -> Energy | None:
    """Trapezoids under its power, none over a gap."""
    if power is None or len(power.times) < 2:
        return None
    usual = statistics.median(later - earlier for earlier, later in pairwise(power.times))
    joules = covered = 0.0
    for place, (before, after) in enumerate(pairwise(power.times)):
        begin, finish = max(start, before), min(end, after)
        if begin < finish and after - before <= _HOLE * usual:
            joules += (finish - begin) * (_at(power, place, begin) + _at(power, place, finish)) / 2
            covered += finish - begin
    if not covered:
        return None
    return Energy(joules, "the integral of its power", _share(covered, start, end, power.times))


def _at(series: Series, place: int, when: float) -> float:
    """On the straight line from the sample at that place to the next."""
    (start, end), (before, after) = series.times[place : place + 2], series.values[place : place + 2]
    return before + (after - before) * ((when - start) / (end - start)) if end > start else after


def _share(seconds: float, start: float, end: float, times: Sequence[float]) -> float:
    """Of the time that was asked for, or of all that was sampled."""
    whole = (times[-1] if isinf(end) else end) - (times[0] if isinf(start) else start)
    return min(1.0, seconds / whole)


# -- the sampler's own word ----------------------------------------------------------------------------------


def _report(folder: Path) -> Mapping[str, Any]:
    """What is in monitors.json; where it cannot be read, that alone is missing."""
    path = folder / REPORT
    try:
        found = jsons.read(path) if path.exists() else {}
        typed.check_json(found, Report, str(path))
    except jsons.FormatError as error:
        return {"missing": [str(error)]}
    return found


def _list(report: Mapping[str, Any], name: str) -> list[Any]:
    found = report.get(name)
    return found if isinstance(found, list) else []


def _dict(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = report.get(name)
    return found if isinstance(found, dict) else {}


def _power_limits(report: Mapping[str, Any]) -> dict[int, float]:
    """By device, the most that its board allows, in W."""
    found: dict[int, float] = {}
    for facts in _list(report, "devices"):
        if isinstance(facts, dict) and isinstance(facts.get("index"), int):
            limits = [number(facts.get(name)) for name in ("power_limit", "usual_power_limit")]
            found[facts["index"]] = max((limit for limit in limits if isfinite(limit)), default=0.0)
    return found


def _events(report: Mapping[str, Any], offset: float) -> Iterator[Event]:
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


def _errors(report: Mapping[str, Any]) -> Iterator[str]:
    for entry in _list(report, "errors"):
        if isinstance(entry, dict):
            yield f"{entry.get('sentence')} ({entry.get('times')} times)"
    yield from map(str, _list(report, "lost_lines"))
