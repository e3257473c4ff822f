"""The load of a round's hosts: how long ranks waited for a core, and which other processes used the cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flagperf_driver.node.logs.samples import Samples
from flagperf_driver.perflog import number
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.stored import files
from pytest_flagperf.stored.layout import host_of

from .metrics import MetricValue
from .phases import Phase

WAITED, STOLEN = 0.08, 0.05
"""Minimum shares of a busy round."""
LEAST_S = 1.0
"""Minimum length of a training: the counters are read only twice a second."""
_CAUSED = 0.5
"""Other processes are the cause if they used at least this share of the time that a rank waited."""


@dataclass(frozen=True)
class HostLoad:
    """The load of one host during the training; None is unknown."""

    waited: float | None
    """The share of the training in which the rank that waited most waited for a core."""
    others: float | None
    """The average number of cores that other processes used."""
    stolen: float | None
    """The share of the cores' working time that the hypervisor gave to others; the divisor is at least one core."""

    @property
    def is_busy(self) -> bool:
        return self.is_crowded and not self.by_itself

    @property
    def is_crowded(self) -> bool:
        return self.waited is not None and self.waited >= WAITED

    @property
    def has_stolen_time(self) -> bool:
        """Whether the hypervisor gave the round's cores to other machines."""
        return self.stolen is not None and self.stolen >= STOLEN

    @property
    def by_itself(self) -> bool:
        """Whether the round's own processes used the cores that its ranks waited for."""
        return self.waited is not None and self.others is not None and self.others < _CAUSED * self.waited


def load_of(samples: Samples, report: Mapping[str, Any], training: Phase) -> HostLoad:
    """Compute the load from a host's counters; all values are None if the training is too short."""
    if training.seconds < LEAST_S:
        return HostLoad(None, None, None)
    window = samples.window(training.start, training.end)
    waited, others, stolen = (window.grown.get(name) for name in ("waited", "others", "stolen"))
    cpu = window.host.get("cpu")
    host = report.get("host")
    cores = number(host.get("cores", 0)) if isinstance(host, dict) else 0.0
    worked = cpu.mean * cores * training.seconds if cpu is not None else 0.0
    return HostLoad(
        None if waited is None else waited / training.seconds,
        None if others is None else others / training.seconds,
        # On nearly idle cores a few ticks would be a large share, though they slow nothing down.
        None if stolen is None else stolen / max(worked, training.seconds),
    )


def validity_warnings(folder: str, samples: Samples, report: Mapping[str, Any], training: Phase) -> Iterator[str]:
    """Yield a sentence for each way in which other work used the cores of the round."""
    load, host = load_of(samples, report, training), host_of(folder)
    if load.is_busy:
        assert load.waited is not None
        share = quantity(load.waited, "share")
        yield f"{host}: a rank waited for a core in {share} of the {training.work}; {_other_processes(load, report)}"
    if load.has_stolen_time:
        share = quantity(load.stolen, "share")
        given = f"gave {share} of the cores' working time to other machines"
        yield f"{host}: the hypervisor {given} during the {training.work}"


def waited_s(samples: Mapping[str, Samples], training: Phase | None) -> float:
    """Return for how long ranks waited for a core in the training, on all hosts where other work used the cores."""
    if training is None:
        return 0.0
    loads = [load_of(own, {}, training) for own in samples.values()]
    return sum((load.waited or 0.0) * training.seconds for load in loads if load.is_busy)


def _other_processes(load: HostLoad, report: Mapping[str, Any]) -> str:
    """Describe the other processes that used the cores, as far as they are known."""
    processes = [
        f"{process.get('name')} (pid {process.get('pid')}, {plain(number(process.get('cores')), 2)})"
        for process in files.objects(report.get("others"))
    ]
    names = f", most of it {', '.join(processes)}" if processes else ""
    cores = "an unknown number of" if load.others is None else plain(load.others, 2)
    return f"other processes used {cores} cores{names}"


def own_load_warnings(
    samples: Mapping[str, Samples], reports: Mapping[str, Mapping[str, Any]], training: Phase | None
) -> Iterator[str]:
    """Yield a sentence for each host on which the round's own processes waited for each other."""
    for folder, own in samples.items() if training is not None else ():
        assert training is not None
        load = load_of(own, reports.get(folder, {}), training)
        if load.is_crowded and load.by_itself:
            share = quantity(load.waited, "share")
            yield (
                f"{host_of(folder)}: a rank waited for a core in {share} of the {training.work} because the round's own"
                " processes used the cores; use fewer data workers or threads, or more cores"
            )


def figures(
    samples: Mapping[str, Samples], reports: Mapping[str, Mapping[str, Any]], training: Phase | None
) -> Iterator[MetricValue]:
    """Yield the load metrics, each of the host with the highest value."""
    if training is None:
        return
    loads = [load_of(own, reports.get(folder, {}), training) for folder, own in samples.items()]
    during = f"{training.between}, of the host with the most"
    for name, values, unit, how in (
        ("core_wait", [load.waited for load in loads], "share", "time in which a rank's main thread waited for a core"),
        ("other_cores", [load.others for load in loads], "cores", "CPU time of processes that are not the round's"),
        ("core_stolen", [load.stolen for load in loads], "share", "working time of cores taken by the hypervisor"),
    ):
        known = [value for value in values if value is not None]
        if known:
            yield MetricValue(name, max(known), unit, "lower", f"{how}, {during}", samples=len(known))
