"""What hosts and devices did while a round trained, as a few figures: from TRAIN_START to TRAIN_END."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flagperf_driver.node.sampling.devices import NO_THROTTLING
from pytest_flagperf.results.logs.samples import Energy, Reasons, Samples, Series
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.results.units import signed
from pytest_flagperf.stored.layout import host_of

MIB = 2**20
WHILE = "from TRAIN_START to TRAIN_END"
_DIFFER = 0.1
"""So far may a device's counter be from the integral of its power: what drivers tell of power is not exact."""
_AVERAGED_S = 1.0
"""Drivers tell the mean power of a time as long as that, so the integral lags behind the counter."""


def figures(samples: Mapping[str, Samples], training: Phase | None, p_whole: float | None) -> tuple[MetricValue, ...]:
    """Records like a round's own metrics; what was not sampled meanwhile is not there."""
    if training is None:
        return ()
    start, end = training.start, training.end
    inside = {host: found.between(start, end) for host, found in samples.items()}
    devices = [found.energy(device, start, end) for found in samples.values() for device in found.devices]
    hosts = [found.host_energy(start, end) for found in samples.values()]
    return (
        *_devices(inside),
        *_energy("device", "all devices", devices, training, p_whole, _difference(samples, training)),
        *_hosts(inside),
        *_energy("host", "all hosts", hosts, training, p_whole, _source(samples, "power")),
        *_gaps(inside, training),
    )


def _devices(samples: Mapping[str, Samples]) -> Iterator[MetricValue]:
    source = _source(samples, "devices")
    power, temperature = _of_devices(samples, "power"), _of_devices(samples, "temperature")
    yield from _mean("device_power", power, "W", "lower", f"a device's mean, over the devices, {WHILE}{source}")
    yield from _highest("device_power_highest", power, "W", "lower", f"the highest of any device, {WHILE}{source}")
    yield from _mean("device_temperature", temperature, "C", "lower", f"mean over the devices, {WHILE}{source}")
    how = f"the highest of any device, {WHILE}{source}"
    yield from _highest("device_temperature_highest", temperature, "C", "lower", how)
    used, memory = _of_devices(samples, "utilization"), _of_devices(samples, "memory_used")
    yield from _mean("device_utilization", used, "share", None, f"mean over the devices, {WHILE}{source}", 0.01)
    yield from _highest("device_memory", memory, "bytes", "lower", f"the most of any device, {WHILE}{source}", MIB)
    yield from _mean("device_memory_mean", memory, "bytes", "lower", f"mean over the devices, {WHILE}{source}", MIB)
    whole = _of_devices(samples, "memory_total")
    yield from _highest("device_memory_total", whole, "bytes", None, f"what a device has{source}", MIB)
    for name in ("sm_clock", "memory_clock"):
        clock = _of_devices(samples, name)
        yield from _mean(f"device_{name}", clock, "MHz", None, f"mean over the devices, {WHILE}{source}")
    held = [reasons for host in samples.values() for reasons in host.held.values()]
    if held:
        value = max(map(_slowed, held))
        how = f"the largest share of samples in which one reason held a device's clocks back, {WHILE}{source}"
        count = sum(len(reasons.codes) for reasons in held)
        yield MetricValue("device_throttled", value, "share", "lower", how, samples=count)


def _source(samples: Mapping[str, Samples], name: str) -> str:
    """What it was read with; why not with something else, in brackets, is told elsewhere."""
    means = sorted({found.partition(" (")[0] for host in samples.values() if (found := host.read_from(name))})
    return f", read from {' and '.join(means)}" if means else ""


def _slowed(held: Reasons) -> float:
    """Where nobody used the device, or somebody set its clocks, nothing holds them back."""
    return max((share for reason, share in held.shares().items() if reason not in NO_THROTTLING), default=0.0)


def _hosts(samples: Mapping[str, Samples]) -> Iterator[MetricValue]:
    cpu, memory, power = (
        [host.host[name] for host in samples.values() if name in host.host] for name in ("cpu", "memory", "power")
    )
    yield from _mean("host_cpu", cpu, "share", None, f"mean share of all cores, over the hosts, {WHILE}")
    yield from _highest("host_memory", memory, "share", "lower", f"the most of any host, {WHILE}")
    if power and len(power) == len(samples):
        how = f"the hosts' means, summed, {WHILE}{_source(samples, 'power')}"
        yield MetricValue("host_power", sum(series.mean for series in power), "W", "lower", how, samples=_count(power))


def _energy(
    name: str,
    whose: str,
    found: Iterable[Energy | None],
    training: Phase,
    p_whole: float | None,
    more: str = "",
) -> Iterator[MetricValue]:
    """Of all, or none: a sum in which some are missing says nothing."""
    energies = list(found)
    known = [energy for energy in energies if energy is not None]
    if not known or len(known) < len(energies):
        return
    how = f"{' and '.join(sorted({energy.how for energy in known}))}, {WHILE}"
    joules = sum(energy.joules for energy in known)
    yield MetricValue(f"{name}_energy", joules, "J", "lower", f"{whose} together: {how}{more}")
    covered = min(energy.covered for energy in known)
    yield MetricValue(
        f"{name}_energy_covered", covered, "share", "higher", f"the share of the time {WHILE} that was sampled"
    )
    if p_whole is not None and p_whole > 0:
        # A gap is taken to have been like the rest; of a training that was taken up again, this part is like the first.
        watts = sum(energy.joules / (energy.covered * training.seconds) for energy in known)
        how = f"{whose} together: their mean power in the sampled share of the time, over p_whole; {how}"
        yield MetricValue(f"{name}_energy_per_sample", watts / p_whole, "J/sample", "lower", how)


def _difference(samples: Mapping[str, Samples], training: Phase) -> str:
    """By how much the integral of the power of all devices is more than their counters say."""
    pairs = [
        found.energy_both_ways(device, training.start, training.end)
        for found in samples.values()
        for device in found.devices
    ]
    known = [pair for pair in pairs if pair is not None]
    counted = sum(counter.joules for counter, _ in known)
    if not known or len(known) < len(pairs) or counted <= 0:
        return ""
    share = sum(integral.joules / integral.covered * counter.covered for counter, integral in known) / counted - 1
    return f"; by the integral of its power it would be {signed(share)}"


def doubts(samples: Mapping[str, Samples], training: Phase | None) -> Iterator[str]:
    """Sentences on devices whose counter and power do not tell of the same energy."""
    if training is None:
        return
    for folder, found in samples.items():
        apart = {device: share for device in found.devices if (share := _apart(found, device, training)) is not None}
        if apart:
            worst = max(apart.values(), key=abs)
            who = f"device{'s' if len(apart) > 1 else ''} {', '.join(map(str, apart))}"
            most = "up to " if len(apart) > 1 else ""
            yield (
                f"{host_of(folder)}: {who}: the energy counter differs by {most}{signed(worst)} from the integral"
                " of the power; device_energy uses the counter"
            )


@dataclass(frozen=True)
class Counted:
    """A device's energy of the training in J, by its counter and by its power; ``noise`` may lie between them."""

    counted: float
    integral: float
    noise: float
    device: str = ""


def counted(samples: Mapping[str, Samples], training: Phase | None) -> tuple[Counted, ...]:
    """Of all devices that tell both, but those of a host whose clock was set: its times do not measure the power."""
    if training is None:
        return ()
    samples = {folder: found for folder, found in samples.items() if not any(event.seconds for event in found.events)}
    return tuple(
        replace(one, device=f"{host_of(folder)}: device {device}")
        for folder, found in samples.items()
        for device in found.devices
        if (one := _counted(found, device, training)) is not None
    )


def _counted(samples: Samples, device: int, training: Phase) -> Counted | None:
    both = samples.energy_both_ways(device, training.start, training.end)
    if both is None:
        return None
    by_counter, integral = (energy.joules / energy.covered for energy in both)
    power = samples.devices[device]["power"]
    watts = power.between(training.start, training.end).values
    if len(watts) < 2 or not integral:
        return None
    lag = _AVERAGED_S * (max(power.values) - min(power.values))
    noise = 3 * statistics.stdev(watts) / len(watts) ** 0.5 * training.seconds
    return Counted(by_counter, integral, lag + noise)


def _apart(samples: Samples, device: int, training: Phase) -> float | None:
    """By which share of the integral the counter is more, where that is more than measuring explains."""
    both = _counted(samples, device, training)
    if both is None:
        return None
    more = both.counted - both.integral
    return more / both.integral if abs(more) > _DIFFER * both.integral + both.noise else None


def _gaps(samples: Mapping[str, Samples], training: Phase) -> Iterator[MetricValue]:
    there = [host for host in samples.values() if host.host or host.devices]
    if there:
        lost = sum(gap.seconds for host in there for gap in host.gaps)
        lost += training.seconds * (len(samples) - len(there))
        how = f"time {WHILE} in which a host was not sampled, summed"
        yield MetricValue("monitor_gaps", lost, "s", "lower", how, samples=len(samples))


def _of_devices(samples: Mapping[str, Samples], name: str) -> list[Series]:
    return [series[name] for host in samples.values() for series in host.devices.values() if name in series]


def _mean(
    name: str, found: list[Series], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[MetricValue]:
    if found:
        value = statistics.fmean(series.mean for series in found) * scale
        yield MetricValue(name, value, unit, direction, how, samples=_count(found))


def _highest(
    name: str, found: list[Series], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[MetricValue]:
    if found:
        value = max(series.highest for series in found) * scale
        yield MetricValue(name, value, unit, direction, how, samples=_count(found))


def _count(found: Iterable[Series]) -> int:
    return sum(len(series.values) for series in found)
