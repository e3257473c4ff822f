"""Charts of the samples of hosts and devices during a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from flagperf_driver.node.logs.samples import Samples, Series
from pytest_flagperf.report.charts import MAX_POINTS, Band, Chart, ChartLine, make_chart
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.stored.layout import host_of

from .chart_html import MAX_LINES, envelope

MAX_SERIES_BYTES = 192 * 1024
"""The maximum number of bytes that are read of a file of samples, if few are read."""
_GAP = 2.5
"""The number of sampling intervals between two samples from which on they are drawn with a gap."""
_SCALES = {"1": (100.0, "%"), "B/s": (1e-6, "MB/s"), "MiB": (1 / 1024, "GiB")}
"""The factor and the unit in charts, by the unit of the samples."""
_HIGHEST = ("memory", "temperature")
"""The charts whose legend shows the highest value; the others show the median."""
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
    """Return the charts of devices, with one line for each device and the phases of the training as bands."""
    several_hosts = len(monitored) > 1
    by_device = {
        (f"{_short(host)} device {index}" if several_hosts else f"device {index}"): series
        for host, samples in monitored.items()
        for index, series in sorted(samples.devices.items())
    }
    charts = []
    for title, name in _DEVICE_CHARTS.items():
        chosen = {device: [series[name]] for device, series in by_device.items() if name in series}
        charts.append(_sampled(title, chosen, monitored, phases, points))
    return charts


def hosts(
    monitored: Mapping[str, Samples], phases: Sequence[Phase] = (), points: int = MAX_POINTS
) -> list[Chart | None]:
    """Return the charts of hosts, with one line for each host."""
    charts = []
    for title, names in _HOST_CHARTS.items():
        by_host = {
            _short(host): [samples.host[name] for name in names if name in samples.host]
            for host, samples in monitored.items()
        }
        by_host = {host: series for host, series in by_host.items() if series}
        charts.append(_sampled(title, by_host, monitored, phases, points))
    return charts


def _sampled(
    title: str,
    by_name: Mapping[str, Sequence[Series]],
    monitored: Mapping[str, Samples],
    phases: Sequence[Phase],
    points: int,
) -> Chart | None:
    """Return a chart in which each line is the sum of its series."""
    start, skimmed = _start(monitored, phases), any(samples.is_partial for samples in monitored.values())
    unit = next((series.unit for group in by_name.values() for series in group), "")
    factor, shown = _SCALES.get(unit, (1.0, unit))
    lines = [_summed(name, series, start, factor, points, skimmed) for name, series in by_name.items()]
    note = ""
    if len(lines) > MAX_LINES:
        note = f"lowest, median and highest of {len(lines)} lines at each time"
        lines = envelope(lines)
    chart = make_chart(title, "time since the start of the round", shown, lines)
    bands = tuple(Band(phase.name, phase.start - start, phase.end - start) for phase in phases)
    summary = "highest" if title.endswith(_HIGHEST) else "median"
    floor = 0.0 if shown != "C" else None
    return chart and replace(chart, kind="time", bands=bands, note=note, floor=floor, summary=summary)


def _summed(name: str, series: Sequence[Series], start: float, factor: float, points: int, skimmed: bool) -> ChartLine:
    first = series[0]
    same_length = [other.values for other in series if len(other.times) == len(first.times)]
    values = first.values if len(same_length) == 1 else [sum(row) for row in zip(*same_length, strict=True)]
    times, means = _thinned(first.times, values, points, gaps=not skimmed)
    return ChartLine(name, [time - start for time in times], [mean * factor for mean in means])


def _thinned(
    times: Sequence[float], values: Sequence[float], points: int, gaps: bool
) -> tuple[list[float], list[float]]:
    """Return the means of as many neighbours as needed for ``points``; a gap in the sampling stays a gap."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    max_step = _GAP * median(steps) if gaps and len(steps) > 2 else math.inf
    stride = max(1, math.ceil(len(times) / points))
    mean_times: list[float] = []
    means: list[float] = []
    for index in range(0, len(times), stride):
        if index and times[index] - times[index - 1] > max(max_step, 0.0):
            mean_times.append((times[index] + times[index - 1]) / 2)
            means.append(math.nan)
        neighbours = values[index : index + stride]
        mean_times.append(sum(times[index : index + stride]) / len(neighbours))
        means.append(sum(neighbours) / len(neighbours))
    return mean_times, means


def _start(monitored: Mapping[str, Samples], phases: Sequence[Phase]) -> float:
    """Return the time of the first sample or of the first phase, whichever is earlier."""
    groups = [samples.host for samples in monitored.values()]
    groups += [device for samples in monitored.values() for device in samples.devices.values()]
    times = [series.times[0] for group in groups for series in group.values()]
    return min(times + [phase.start for phase in phases], default=0.0)


def _short(folder: str) -> str:
    return host_of(folder) or folder
