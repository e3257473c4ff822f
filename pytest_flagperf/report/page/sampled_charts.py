"""Charts of what was sampled on hosts and devices during a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from pytest_flagperf.report.page.charts import LINES_AT_MOST, MAX_POINTS, Band, Chart, Line, envelope, make_chart
from pytest_flagperf.results.logs.samples import Samples, Series
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.stored.layout import host_of

_HOLE = 2.5
"""So many intervals between two samples are a gap."""
_SCALES = {"1": (100.0, "%"), "B/s": (1e-6, "MB/s"), "MiB": (1 / 1024, "GiB")}
"""Units as they are drawn: what a value is multiplied by, and the unit then."""
_HOST_CHARTS = {
    "Host CPU": ("cpu",),
    "Host memory": ("memory",),
    "Host network, in and out": ("net_rx", "net_tx", "rdma_rx", "rdma_tx"),
    "Host power": ("power",),
}
_DEVICE_CHARTS = {
    "Device utilization": "utilization",
    "Device memory": "memory_used",
    "Device power": "power",
    "Device temperature": "temperature",
    "Device clock": "sm_clock",
}


def devices(
    monitored: Mapping[str, Samples], phases: Sequence[Phase] = (), points: int = MAX_POINTS
) -> list[Chart | None]:
    """What the devices did, a line a device; the training's phases are bands."""
    many = len(monitored) > 1
    found = {
        (f"{_short(host)} device {index}" if many else f"device {index}"): series
        for host, samples in monitored.items()
        for index, series in sorted(samples.devices.items())
    }
    return [
        _sampled(
            title, {who: [series[name]] for who, series in found.items() if name in series}, monitored, phases, points
        )
        for title, name in _DEVICE_CHARTS.items()
    ]


def hosts(
    monitored: Mapping[str, Samples], phases: Sequence[Phase] = (), points: int = MAX_POINTS
) -> list[Chart | None]:
    """What the hosts did, a line a host."""
    charts = []
    for title, names in _HOST_CHARTS.items():
        found = {
            _short(host): [samples.host[name] for name in names if name in samples.host]
            for host, samples in monitored.items()
        }
        there = {who: series for who, series in found.items() if series}
        charts.append(_sampled(title, there, monitored, phases, points))
    return charts


def _sampled(
    title: str,
    found: Mapping[str, Sequence[Series]],
    monitored: Mapping[str, Samples],
    phases: Sequence[Phase],
    points: int,
) -> Chart | None:
    """Each line the sum of its series, as percent, GiB or what they are read in."""
    start, skimmed = _start(monitored, phases), any(samples.is_partial for samples in monitored.values())
    unit = next((each.unit for series in found.values() for each in series), "")
    factor, shown = _SCALES.get(unit, (1.0, unit))
    lines = [_summed(name, series, start, factor, points, skimmed) for name, series in found.items()]
    note = ""
    if len(lines) > LINES_AT_MOST:
        note = f"of {len(lines)} lines: the lowest, the middle and the highest at each time"
        lines = envelope(lines)
    made = make_chart(title, "time since the round began", shown, lines)
    bands = tuple(Band(phase.name, phase.start - start, phase.end - start) for phase in phases)
    return made and replace(made, kind="time", bands=bands, note=note, floor=0.0 if shown != "C" else None)


def _summed(name: str, series: Sequence[Series], start: float, factor: float, points: int, skimmed: bool) -> Line:
    first = series[0]
    same = [one.values for one in series if len(one.times) == len(first.times)]
    values = first.values if len(same) == 1 else [sum(each) for each in zip(*same, strict=True)]
    times, means = _thinned(first.times, values, points, holes=not skimmed)
    return Line(name, [when - start for when in times], [mean * factor for mean in means])


def _thinned(
    times: Sequence[float], values: Sequence[float], points: int, holes: bool
) -> tuple[list[float], list[float]]:
    """As many neighbours together as it takes, each by their mean; a hole in the sampling stays one."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    hole = _HOLE * median(steps) if holes and len(steps) > 2 else math.inf
    stride = max(1, math.ceil(len(times) / points))
    found_times: list[float] = []
    found: list[float] = []
    for place in range(0, len(times), stride):
        if place and times[place] - times[place - 1] > max(hole, 0.0):
            found_times.append((times[place] + times[place - 1]) / 2)
            found.append(math.nan)
        together = values[place : place + stride]
        found_times.append(sum(times[place : place + stride]) / len(together))
        found.append(sum(together) / len(together))
    return found_times, found


def _start(monitored: Mapping[str, Samples], phases: Sequence[Phase]) -> float:
    """The first sample of all, or the first phase's begin."""
    series = [one for samples in monitored.values() for one in samples.host.values()]
    series += [one for samples in monitored.values() for device in samples.devices.values() for one in device.values()]
    return min([one.times[0] for one in series] + [phase.start for phase in phases], default=0.0)


def _short(folder: str) -> str:
    return host_of(folder) or folder
