"""Whether a round had its host to itself: how long its ranks waited for a core, and who else had the cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.results.logs.samples import Samples
from pytest_flagperf.results.units import plain, quantity
from pytest_flagperf.stored import files
from pytest_flagperf.stored.layout import host_of

from .metrics import MetricValue
from .phases import Phase

WAITED, STOLEN = 0.08, 0.05
"""From these shares on a round is busy; docs/measuring.md has the rate of false alarms."""
LEAST_S = 1.0
"""The counters are read twice a second: of a shorter training they show too little."""
_CAUSED = 0.5
"""Other processes are the cause where they used at least this part of the time that a rank waited."""


@dataclass(frozen=True)
class HostLoad:
    """One host's, while the round trained; None is not known."""

    waited: float | None
    """The share of the training in which the rank that waited most waited for a core."""
    others: float | None
    """How many cores processes that are not the round's used, on average."""
    stolen: float | None
    """Of the time in which cores had work, and at least of one core's time, what the hypervisor gave to others."""

    @property
    def is_busy(self) -> bool:
        return self.is_crowded and not self.by_itself

    @property
    def is_crowded(self) -> bool:
        return self.waited is not None and self.waited >= WAITED

    @property
    def has_stolen_time(self) -> bool:
        """Whether the hypervisor ran something else on the round's cores."""
        return self.stolen is not None and self.stolen >= STOLEN

    @property
    def by_itself(self) -> bool:
        """Whether the round's own processes had the cores that its ranks waited for."""
        return self.waited is not None and self.others is not None and self.others < _CAUSED * self.waited


def load_of(samples: Samples, report: Mapping[str, Any], training: Phase) -> HostLoad:
    """What a host's counters say of the training; nothing where the training is too short."""
    if training.seconds < LEAST_S:
        return HostLoad(None, None, None)
    waited, others, stolen = (
        samples.grown(name, training.start, training.end) for name in ("waited", "others", "stolen")
    )
    cpu = samples.host["cpu"].between(training.start, training.end) if "cpu" in samples.host else None
    host = report.get("host")
    cores = number(host.get("cores", 0)) if isinstance(host, dict) else 0.0
    worked = cpu.mean * cores * training.seconds if cpu is not None and cpu.values else 0.0
    return HostLoad(
        None if waited is None else waited / training.seconds,
        None if others is None else others / training.seconds,
        # Of cores that hardly work, a few ticks would be a large share: nothing that slows a round down.
        None if stolen is None else stolen / max(worked, training.seconds),
    )


def validity_warnings(folder: str, samples: Samples, report: Mapping[str, Any], training: Phase) -> Iterator[str]:
    """A sentence for each way in which other work had the cores of the round."""
    load, host = load_of(samples, report, training), host_of(folder)
    if load.is_busy:
        assert load.waited is not None
        share = quantity(load.waited, "share")
        yield f"{host}: a rank waited for a core in {share} of the training; {_who(load, report)}"
    if load.has_stolen_time:
        share = quantity(load.stolen, "share")
        yield f"{host}: the hypervisor gave {share} of the cores' working time to other machines during the training"


def _who(load: HostLoad, report: Mapping[str, Any]) -> str:
    """Who had the cores meanwhile, as far as that is known."""
    seen = [
        f"{one.get('name')} (pid {one.get('pid')}, {plain(number(one.get('cores')), 2)})"
        for one in files.objects(report.get("others"))
    ]
    names = f", most of it {', '.join(seen)}" if seen else ""
    return f"other processes used {_cores(load.others)}{names}"


def _cores(used: float | None) -> str:
    return "an unknown number of cores" if used is None else f"{plain(used, 2)} cores"


def doubts(
    samples: Mapping[str, Samples], reports: Mapping[str, Mapping[str, Any]], training: Phase | None
) -> Iterator[str]:
    """A sentence for each host on which the round's own processes waited for each other."""
    for folder, found in samples.items() if training is not None else ():
        assert training is not None
        load = load_of(found, reports.get(folder, {}), training)
        if load.is_crowded and load.by_itself:
            share = quantity(load.waited, "share")
            yield (
                f"{host_of(folder)}: a rank waited for a core in {share} of the training, and the round's own processes"
                " had the cores: give it fewer data workers or threads, or more cores"
            )


def figures(
    samples: Mapping[str, Samples], reports: Mapping[str, Mapping[str, Any]], training: Phase | None
) -> Iterator[MetricValue]:
    """Of the host where it is most."""
    if training is None:
        return
    loads = [load_of(found, reports.get(folder, {}), training) for folder, found in samples.items()]
    while_ = "from TRAIN_START to TRAIN_END, of the host with the most"
    for name, values, unit, how in (
        ("core_wait", [one.waited for one in loads], "share", "time in which a rank's main thread waited for a core"),
        ("other_cores", [one.others for one in loads], "cores", "CPU time of processes that are not the round's"),
        ("core_stolen", [one.stolen for one in loads], "share", "working time of cores that the hypervisor took away"),
    ):
        known = [value for value in values if value is not None]
        if known:
            yield MetricValue(name, max(known), unit, "lower", f"{how}, {while_}", samples=len(known))
