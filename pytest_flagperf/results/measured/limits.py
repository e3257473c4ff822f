"""The limits of a training's step: the least time of its computing, its memory traffic and its communication.

Each limit counts one of them alone, at the rate that the machine was measured to reach. A step that overlaps all three
perfectly takes as long as the largest limit, which binds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import Outcome, counted
from pytest_flagperf.results.measured.profile import seconds_at
from pytest_flagperf.stored.plan import PEAKS

COMPUTE, MEMORY, COMMUNICATION = "compute", "memory", "communication"
TOLERANCE = 0.05
"""A limit may exceed the measured step by so much, as measurements vary."""
MEMORY_FIGURES = ("copy_bandwidth", "update_bandwidth")
"""The figures of main memory that bound a step: on some processors an update in place is faster than a copy."""
ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class Place:
    """Where a case ran."""

    vendor: str
    hardware: str
    framework: str
    hosts: frozenset[str]
    nnodes: int
    nproc: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.nnodes, self.nproc


@dataclass(frozen=True)
class StepWork:
    """What one card does in a measured step of a training."""

    place: Place
    precision: str
    seconds: float
    """Without waiting for input."""
    samples: float
    """The samples of all cards in a step."""
    unit: str = "samples/s"
    flops: float | None = None
    bytes: float | None = None
    """Those that no program avoids."""
    operations: float | None = None
    """The bytes that the operations read and write, one after the other."""
    exchanged: float | None = None
    """The bytes of the gradients that ranks exchange; None for one rank."""
    mfu: float | None = None
    """Of the declared peak."""


@dataclass(frozen=True)
class MachineRates:
    """What a machine was measured to do, a card in the training's precision."""

    flops: float | None = None
    """FLOP/s of a matrix product."""
    bytes: float | None = None
    """B/s of the device's memory."""
    all_reduce: tuple[tuple[float, float], ...] = ()
    """Bytes and seconds of all-reduces by all ranks, the smallest first."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The figure and the case that each limit comes from."""


@dataclass(frozen=True)
class StepLimits:
    """The limits of a step, in seconds by name, and its work."""

    work: StepWork
    times: Mapping[str, float]
    operations: float | None = None
    """The time of the operations' bytes: no limit, since a compiler may save some of them."""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def binds(self) -> str:
        """The name of the largest limit."""
        return max(self.times, key=lambda name: self.times[name])

    @property
    def least(self) -> float:
        """The least time of a step: its largest limit."""
        return self.times[self.binds]

    @property
    def above(self) -> tuple[str, ...]:
        """The limits that the measured step is faster than: the machine was slower when it was measured."""
        return tuple(name for name, time in self.times.items() if time > self.work.seconds * (1 + TOLERANCE))

    def share(self, seconds: float) -> float:
        """Return the share of the measured step."""
        return seconds / self.work.seconds

    def rate(self, seconds: float) -> float:
        """Return the samples per second of all cards with steps of so many seconds."""
        return self.work.samples / seconds


def of_step(work: StepWork, machine: MachineRates) -> StepLimits | None:
    """Return the limits of a step on a machine; None if the machine has no rate for what the step does."""
    times = {
        COMPUTE: seconds_at(machine.flops, work.flops),
        MEMORY: seconds_at(machine.bytes, work.bytes),
        COMMUNICATION: interpolated(machine.all_reduce, work.exchanged) if work.exchanged else None,
    }
    known = {name: time for name, time in times.items() if time}
    if not known:
        return None
    return StepLimits(work, known, seconds_at(machine.bytes, work.operations), machine.sources)


def interpolated(curve: Sequence[tuple[float, float]], size: float) -> float | None:
    """Return the seconds for a size from measured sizes and seconds, linear in between.

    A smaller size takes as long as the smallest measured one, and a larger one has the rate of the largest.
    """
    if not curve:
        return None
    (first, shortest), (last, longest) = curve[0], curve[-1]
    if size <= first:
        return shortest
    if size >= last:
        return longest * size / last
    (low, before), (high, after) = next(pair for pair in pairwise(curve) if size <= pair[1][0])
    return before + (after - before) * (size - low) / (high - low)


# -- from outcomes -------------------------------------------------------------------------------------------


def work_of(rounds: Sequence[Outcome]) -> StepWork | None:
    """Return the work of a step of a case, with the median p_core of its rounds; None without measured steps."""
    rounds = counted(rounds)
    first = next(iter(rounds), None)
    rates = finite(outcome.value("p_core") for outcome in rounds)
    if first is None or not rates or not first.work.measured_steps or not first.work.measured_samples:
        return None
    samples, rate = first.work.measured_samples / first.work.measured_steps, median(rates)
    moved = first.profile.bytes if first.profile else None
    return StepWork(
        place=_place(first),
        precision=first.environment.get("precision", ""),
        seconds=samples / rate,
        samples=samples,
        unit=first.rate_unit,
        flops=first.work.step_flops,
        bytes=moved.least if moved else None,
        operations=moved.operations if moved else None,
        exchanged=moved.gradients if moved and first.cards > 1 else None,
        mfu=first.value("mfu"),
    )


def rates_of(work: StepWork, measurements: Iterable[Outcome]) -> MachineRates:
    """Return the rates of the training's machine from measurements of it.

    Computing and memory are of a card, so they may come from another number of cards, but not from more per host,
    which share the memory; an all-reduce only from the same ranks. Rounds with a validity warning count only if every
    round has one.
    """
    places = [(_place(one), one) for one in measurements if one.ok and one.points]
    near = [(place, one) for place, one in places if _is_same_machine(work.place, place)]
    near.sort(
        key=lambda pair: (pair[1].valid, pair[0].shape == work.place.shape, pair[0].nproc, pair[0].nnodes), reverse=True
    )
    measured = [one for _, one in near]
    same = [one for place, one in near if place.shape == work.place.shape]
    sources: dict[str, str] = {}
    figure = f"matmul_{PEAKS.get(work.precision, work.precision)}"
    flops = _figure(measured, (figure,), COMPUTE, sources)
    bandwidth = _figure(measured, MEMORY_FIGURES, MEMORY, sources)
    curve = _curve(same, sources)
    return MachineRates(flops, bandwidth, curve, sources)


def limits_of(work: StepWork, measurements: Iterable[Outcome]) -> StepLimits | None:
    """Return the limits of a step on its machine; None without a measurement of the machine."""
    return of_step(work, rates_of(work, measurements))


def _place(outcome: Outcome) -> Place:
    hosts = frozenset(outcome.environment.get("hosts", "").split(", "))
    return Place(outcome.vendor, outcome.hardware, outcome.framework, hosts, outcome.nnodes, outcome.nproc)


def _is_same_machine(training: Place, measured: Place) -> bool:
    same = [(place.vendor, place.hardware, place.framework) for place in (training, measured)]
    return same[0] == same[1] and measured.hosts <= training.hosts and measured.nproc <= training.nproc


def _figure(measured: Sequence[Outcome], names: Sequence[str], limit: str, sources: dict[str, str]) -> float | None:
    """Return the largest of the figures in the first case that has one, the median of its rounds."""
    first = next((one for one in measured if any(_value(one, name) for name in names)), None)
    if first is None:
        return None
    case = first.case
    rounds = [one for one in measured if one.case == case and one.valid == first.valid]
    medians = {name: median(values) for name in names if (values := finite(_value(one, name) for one in rounds))}
    name = max(medians, key=lambda name: medians[name])
    unit = next(metric.unit for one in rounds if (metric := one.metric(name)))
    sources[limit] = f"{name} {quantity(medians[name], unit)} of {case}"
    return medians[name]


def _value(outcome: Outcome, name: str) -> float | None:
    """Return a figure; None if it is missing or impossible."""
    value = outcome.value(name)
    if value is None or not 0 < value < math.inf:
        return None
    return value if all(figure.is_possible(value) for figure in outcome.figures if figure.name == name) else None


def _curve(measured: Sequence[Outcome], sources: dict[str, str]) -> tuple[tuple[float, float], ...]:
    """Return the all-reduces of the first round that has some: bytes and seconds, the smallest first."""
    for one in measured:
        pairs = {
            float(point.values["bytes"]): point.seconds
            for point in one.points
            if ALL_REDUCE in point.figures and point.seconds and isinstance(point.values.get("bytes"), int | float)
        }
        if pairs:
            sources[COMMUNICATION] = f"{ALL_REDUCE} of {len(pairs)} sizes of {one.case}"
            return tuple(sorted(pairs.items()))
    return ()
