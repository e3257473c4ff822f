"""Read the samples of hosts and devices from the files of a round's directory.

Times are seconds since the epoch by the clock of the machine that runs pytest: the measured offset of a host is
subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, TypedDict

from flagperf_driver.layout import MONITORS
from flagperf_driver.node.logs.sample_files import events_of, read_samples
from flagperf_driver.node.logs.samples import Samples
from flagperf_driver.node.logs.summary import HostSummary, with_summary
from flagperf_driver.node.sampling.notes import KINDS
from pytest_flagperf.printable import printable
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.stored import FormatError, files, type_check
from pytest_flagperf.stored.layout import host_folder, host_of, noderank_of
from pytest_flagperf.stored.round_dir import RoundDir

from . import host_summaries, range_texts

_MOST_REPORTS = 4096
"""The reports in memory, at most: as many as a large round has hosts, since each is read for several figures."""


class DeviceReport(TypedDict, total=False):
    """The fields of a device in monitors.json."""

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
    """The checked fields of monitors.json; events and errors are checked entry by entry."""

    host: dict[str, str] | None
    devices: list[DeviceReport] | None
    driver: str | None
    means: dict[str, str] | None
    missing: list[str] | None


def warnings(round_dir: Path) -> list[str]:
    """The events on hosts and devices except validity warnings; reads no samples."""
    return [
        f"{host_of(folder.name)}: {event.sentence}"
        for folder in _folders(round_dir)
        for event in events_of(_report(folder), 0.0)
        if event.kind not in KINDS
    ]


def dropped(samples: Mapping[str, Samples]) -> list[str]:
    """Sentences on the readings outside their possible range."""
    return [
        text for folder, own in samples.items() for text in range_texts.dropped_readings(host_of(folder), own.dropped)
    ]


def notes(samples: Samples) -> list[str]:
    """Sentences on events, gaps, errors and missing quantities."""
    lost = sum(gap.seconds for gap in samples.gaps)
    gaps = [f"{count(len(samples.gaps), 'gap')} between the samples, {lost:.1f} s in total"] if samples.gaps else []
    return [*(event.sentence for event in samples.events), *gaps, *samples.errors, *samples.missing]


def reports(round_dir: Path) -> dict[str, Mapping[str, Any]]:
    """The sampler's report (monitors.json) by host folder."""
    return {folder.name: _report(folder) for folder in _folders(round_dir)}


def _folders(round_dir: Path) -> list[Path]:
    return sorted(path for path in round_dir.glob(host_folder("*", "*")) if path.is_dir())


def read(
    round_dir: Path, at_most: float = inf, summaries: Mapping[str, HostSummary] | None = None
) -> dict[str, Samples]:
    """Return the samples by host folder; only parts of a series of more than ``at_most`` bytes.

    Samples that stay on their host are those of its summary. With ``summaries``, which were read already, these have no
    series, since only charts need them.
    """
    offsets = _offsets(round_dir)
    return {
        folder.name: _host(folder, offsets.get(noderank_of(folder.name), 0.0), at_most, summaries)
        for folder in _folders(round_dir)
    }


def _host(folder: Path, offset: float, at_most: float, summaries: Mapping[str, HostSummary] | None) -> Samples:
    samples = read_samples(folder, _report(folder), offset, at_most, printable)
    if samples.host or samples.devices:
        return samples
    try:
        summary = host_summaries.read(folder) if summaries is None else summaries.get(folder.name)
    except FormatError as error:
        return replace(samples, missing=(*samples.missing, str(error)))
    return with_summary(samples, summary, drawn=summaries is None) if summary is not None else samples


def _offsets(round_dir: Path) -> dict[int, float]:
    """The clock offset of each host from this machine, by node rank."""
    try:
        return {host.noderank: host.clock_offset_s for host in RoundDir(round_dir).read_plan().hosts}
    except FormatError:
        return {}


# -- the sampler's report ------------------------------------------------------------------------------------


def _report(folder: Path) -> Mapping[str, Any]:
    """Read monitors.json; an unreadable file is a report of that error."""
    path = folder / MONITORS
    try:
        status = path.stat()
    except OSError:
        return {}
    return _read_report(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=_MOST_REPORTS)
def _read_report(path: Path, *_stamp: int) -> Mapping[str, Any]:
    """Read a file once for all figures of a round; a file that was replaced has another stamp."""
    try:
        report = files.read_printable(path)
        type_check.check(report, Report, str(path))
    except FormatError as error:
        return {"missing": [str(error)]}
    return report
