"""The samples of a host and its devices: series over time, gaps between the samples, events and energy."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from math import inf, isfinite, isinf
from typing import Iterable, Iterator, Mapping, Sequence

from .ranges import DroppedReadings

_MEANS = {"net": "network", "disk": "disk", "rdma": "rdma"}
_GAP_INTERVALS = 2.5
"""Two samples further apart than this many intervals have a gap between them."""


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
        """The samples between two times."""
        span = _span(self.times, start, end)
        return Series(self.name, self.unit, self.times[span], self.values[span])


@dataclass(frozen=True)
class Reasons:
    """The throttling reasons of a device, sample by sample; ``codes`` are indexes in ``names``."""

    times: Sequence[float]
    codes: Sequence[int]
    names: Sequence[str]
    """Each is one reason, several reasons joined by "+", or "none"."""

    def counts(self) -> dict[str, int]:
        """The number of samples with each name."""
        return {self.names[code]: times for code, times in sorted(Counter(self.codes).items())}

    def between(self, start: float, end: float) -> Reasons:
        span = _span(self.times, start, end)
        return Reasons(self.times[span], self.codes[span], self.names)


@dataclass(frozen=True)
class Gap:
    """A time without samples."""

    start: float
    seconds: float
    devices: tuple[int, ...] = ()
    """The devices without samples; empty if the host has none."""


@dataclass(frozen=True)
class Event:
    """An event on the host, on a device or in the sampler."""

    time: float
    device: int | None
    sentence: str
    kind: str | None = None
    """One of ``notes.KINDS`` if the event is a validity warning of the round."""
    seconds: float = 0.0
    """The seconds by which a clock was set."""


@dataclass(frozen=True)
class Energy:
    """The energy of a device or host in J; ``covered`` is the share of the time that was sampled."""

    joules: float
    how: str
    covered: float


@dataclass(frozen=True)
class EnergyPair:
    """The energy of a device by its counter and by its power, whose readings lag and scatter."""

    counted: Energy
    integral: Energy
    power_spread: float
    """From the lowest to the highest power of the round, in W."""
    power_error: float | None = None
    """The standard error of the mean power; None with fewer than two readings."""


@dataclass(frozen=True)
class Quantity:
    """The readings of a quantity between two times."""

    count: int
    mean: float
    highest: float


@dataclass(frozen=True)
class DeviceWindow:
    """The figures of a device between two times."""

    index: int
    quantities: Mapping[str, Quantity]
    held: Mapping[str, int] = field(default_factory=dict)
    """The number of samples by throttling reasons, of which several are joined by "+"."""
    energy: Energy | None = None
    pair: EnergyPair | None = None
    """The energy by both ways of a device that has both."""

    @property
    def throttle(self) -> dict[str, float]:
        """The share of the samples that have each reason."""
        counts: Counter[str] = Counter()
        for names, times in self.held.items():
            counts.update(dict.fromkeys(names.split("+"), times))
        total = sum(self.held.values())
        return {reason: times / total for reason, times in sorted(counts.items()) if reason != "none"}


@dataclass(frozen=True)
class HostWindow:
    """The figures of a host and its devices between two times: all that a round's figures need of the samples."""

    start: float
    end: float
    host: Mapping[str, Quantity]
    devices: tuple[DeviceWindow, ...] = ()
    gaps: tuple[Gap, ...] = ()
    """Also the time before the first and after the last sample."""
    energy: Energy | None = None
    grown: Mapping[str, float] = field(default_factory=dict)
    """The growth of each load counter, extrapolated to the time without samples."""

    @property
    def sampled_devices(self) -> tuple[DeviceWindow, ...]:
        return tuple(device for device in self.devices if device.quantities)


@dataclass(frozen=True)
class Samples:
    """The samples of one host."""

    host: Mapping[str, Series]
    devices: Mapping[int, Mapping[str, Series]] = field(default_factory=dict)
    held: Mapping[int, Reasons] = field(default_factory=dict)
    """The throttling reasons by device, for devices that report them."""
    gaps: tuple[Gap, ...] = ()
    events: tuple[Event, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict)
    """The source of each quantity."""
    load: Mapping[str, Series] = field(default_factory=dict)
    """Counters of the use of the cores: ``flagperf_driver.node.sampling.load``."""
    dropped: tuple[DroppedReadings, ...] = ()
    """The readings outside their ranges, which are in no series."""
    is_partial: bool = False
    """Whether the series have only parts of the samples; then gaps are unknown."""
    windows: tuple[HostWindow, ...] | None = None
    """The only windows that are known, of samples that their host summed up; None if the series are known."""
    _computed: dict[tuple[float, float], HostWindow] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def read_from(self, name: str) -> str:
        """The source of a quantity, or an empty text."""
        return self.means.get(_MEANS.get(name.partition("_")[0], name), "")

    @property
    def throttle(self) -> dict[int, dict[str, float]]:
        """The share of throttled samples by device and reason."""
        return {device.index: device.throttle for device in self.window().devices if device.held}

    def window(self, start: float = -inf, end: float = inf) -> HostWindow:
        """Return the figures between two times; ValueError if the host did not sum them up."""
        if self.windows is not None:
            found = next((one for one in self.windows if (one.start, one.end) == (start, end)), None)
            if found is None:
                raise ValueError(f"a host's summary has no figures of the samples from {start} to {end}")
            return found
        if (start, end) not in self._computed:
            self._computed[start, end] = self._window(start, end)
        return self._computed[start, end]

    def _window(self, start: float, end: float) -> HostWindow:
        power, counter = self.host.get("power"), self.host.get("energy")
        grown = {name: _counted(series, start, end) for name, series in self.load.items()}
        return HostWindow(
            start,
            end,
            _quantities(self.host, start, end),
            tuple(self._device(index, start, end) for index in sorted({*self.devices, *self.held})),
            tuple(find_gaps(self._ticks(), start, end)) if not self.is_partial else (),
            _counted(counter, start, end, "the processors' own counters") or _integral(power, start, end),
            {name: energy.joules / energy.covered for name, energy in grown.items() if energy and energy.covered},
        )

    def _device(self, index: int, start: float, end: float) -> DeviceWindow:
        series = self.devices.get(index, {})
        power = series.get("power")
        counted, integral = _counted(series.get("energy"), start, end), _integral(power, start, end)
        held = self.held[index].between(start, end).counts() if index in self.held else {}
        pair = None
        if counted and integral and power:
            watts = power.between(start, end).values
            error = statistics.stdev(watts) / len(watts) ** 0.5 if len(watts) > 1 else None
            pair = EnergyPair(counted, integral, max(power.values) - min(power.values), error)
        return DeviceWindow(index, _quantities(series, start, end), held, counted or integral, pair)

    def _ticks(self) -> Iterator[tuple[int | None, Sequence[float]]]:
        """The sampling times of the host and of each device: those of the quantity with most samples."""
        for device, quantities in [(None, self.host), *self.devices.items()]:
            if quantities:
                yield device, max((series.times for series in quantities.values()), key=len)


def _pairs(values: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Yield each value with the next one."""
    return zip(values, values[1:])


def _quantities(series: Mapping[str, Series], start: float, end: float) -> dict[str, Quantity]:
    parts = {name: one.between(start, end).values for name, one in series.items()}
    return {
        name: Quantity(len(values), statistics.fmean(values), max(values)) for name, values in parts.items() if values
    }


def _span(times: Sequence[float], start: float, end: float) -> slice:
    return slice(bisect_left(times, start), bisect_right(times, end))


def find_gaps(tables: Iterable[tuple[int | None, Sequence[float]]], start: float = -inf, end: float = inf) -> list[Gap]:
    """Return the gaps of the host and its devices; gaps that overlap are merged."""
    gaps = (gap for device, times in tables for gap in _gaps_of(device, times, start, end))
    merged: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.start):
        last = merged[-1] if merged else None
        if last is None or gap.start >= last.start + last.seconds:
            merged.append(gap)
        else:
            end = max(last.start + last.seconds, gap.start + gap.seconds)
            devices = tuple(sorted({*last.devices, *gap.devices})) if last.devices and gap.devices else ()
            merged[-1] = Gap(last.start, end - last.start, devices)
    return merged


def _gaps_of(device: int | None, times: Sequence[float], start: float, end: float) -> Iterator[Gap]:
    """Yield the gaps between the samples; finite ends count as samples."""
    steps = [later - earlier for earlier, later in _pairs(times)]
    least = _GAP_INTERVALS * statistics.median(steps) if len(steps) > 2 else inf
    inside = [*_finite(start), *times[_span(times, start, end)], *_finite(end)]
    for earlier, later in _pairs(inside):
        if later - earlier > least:
            yield Gap(earlier, later - earlier, () if device is None else (device,))


def _finite(edge: float) -> list[float]:
    return [edge] if isfinite(edge) else []


# -- energy --------------------------------------------------------------------------------------------------


def _counted(
    counter: Series | None, start: float = -inf, end: float = inf, how: str = "the device's own counter"
) -> Energy | None:
    """The growth of a counter, interpolated between samples; None if the counter was reset."""
    if counter is None or len(counter.values) < 2:
        return None
    begin, finish = max(start, counter.times[0]), min(end, counter.times[-1])
    first = max(bisect_right(counter.times, begin) - 1, 0)
    last = min(bisect_left(counter.times, finish), len(counter.times) - 1)
    if finish <= begin or any(later < earlier for earlier, later in _pairs(counter.values[first : last + 1])):
        return None
    joules = _at(counter, last - 1, finish) - _at(counter, first, begin)
    return Energy(joules, how, _share(finish - begin, start, end, counter.times))


def _integral(power: Series | None, start: float = -inf, end: float = inf) -> Energy | None:
    """The integral of the power by trapezoids, without gaps."""
    if power is None or len(power.times) < 2:
        return None
    usual = statistics.median(later - earlier for earlier, later in _pairs(power.times))
    joules = covered = 0.0
    for place, (before, after) in enumerate(_pairs(power.times)):
        begin, finish = max(start, before), min(end, after)
        if begin < finish and after - before <= _GAP_INTERVALS * usual:
            joules += (finish - begin) * (_at(power, place, begin) + _at(power, place, finish)) / 2
            covered += finish - begin
    if not covered:
        return None
    return Energy(joules, "the integral of its power", _share(covered, start, end, power.times))


def _at(series: Series, place: int, when: float) -> float:
    """The value between the sample at that index and the next, interpolated."""
    (start, end), (before, after) = series.times[place : place + 2], series.values[place : place + 2]
    return before + (after - before) * ((when - start) / (end - start)) if end > start else after


def _share(seconds: float, start: float, end: float, times: Sequence[float]) -> float:
    """The share of the given time, or of the whole sampled time."""
    whole = (times[-1] if isinf(end) else end) - (times[0] if isinf(start) else start)
    return min(1.0, seconds / whole)
