"""What was sampled on a host and its devices: series over time, gaps between the samples, events and energy."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, isinf

from .ranges import DroppedReadings

_MEANS = {"net": "network", "disk": "disk", "rdma": "rdma"}
_HOLE = 2.5
"""So many intervals between two samples are a gap."""


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
    """One of ``notes.KINDS`` if the event is a validity warning of the round."""
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
    dropped: tuple[DroppedReadings, ...] = ()
    """The readings that were outside their ranges, and are in no series."""
    is_partial: bool = False
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
            gaps=tuple(find_gaps(self._ticks(), start, end)),
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


def find_gaps(tables: Iterable[tuple[int | None, Sequence[float]]], start: float = -inf, end: float = inf) -> list[Gap]:
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
