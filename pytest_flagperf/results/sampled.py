"""What hosts and devices did while a round trained, as a few figures: from TRAIN_START to TRAIN_END."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping

from pytest_flagperf.results.metrics import Metric
from pytest_flagperf.results.monitors import Energy, Samples, Series
from pytest_flagperf.results.phases import Phase

MIB = 2**20
WHILE = "from TRAIN_START to TRAIN_END"


def figures(samples: Mapping[str, Samples], training: Phase | None, p_whole: float | None) -> tuple[Metric, ...]:
    """Records like a round's own metrics; what was not sampled meanwhile is not there."""
    if training is None:
        return ()
    start, end = training.start, training.end
    inside = {host: found.between(start, end) for host, found in samples.items()}
    devices = [found.energy(device, start, end) for found in samples.values() for device in found.devices]
    hosts = [found.host_energy(start, end) for found in samples.values()]
    return (
        *_devices(inside),
        *_energy("device", "all devices", devices, training, p_whole),
        *_hosts(inside),
        *_energy("host", "all hosts", hosts, training, p_whole),
        *_gaps(inside, training),
    )


def _devices(samples: Mapping[str, Samples]) -> Iterator[Metric]:
    means = sorted({found for host in samples.values() if (found := host.read_from("devices"))})
    source = f", read from {' and '.join(means)}" if means else ""
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
    held = [reasons for host in samples.values() for reasons in host.held.values()]
    if held:
        value = max((share for reasons in held for share in reasons.shares().values()), default=0.0)
        how = f"the largest share of samples in which one reason held a device's clocks back, {WHILE}{source}"
        count = sum(len(reasons.codes) for reasons in held)
        yield Metric("device_throttled", value, "share", "lower", how, samples=count)


def _hosts(samples: Mapping[str, Samples]) -> Iterator[Metric]:
    cpu, memory, power = (
        [host.host[name] for host in samples.values() if name in host.host] for name in ("cpu", "memory", "power")
    )
    yield from _mean("host_cpu", cpu, "share", None, f"mean share of all cores, over the hosts, {WHILE}")
    yield from _highest("host_memory", memory, "share", "lower", f"the most of any host, {WHILE}")
    if power and len(power) == len(samples):
        how = f"the hosts' means, summed, {WHILE}"
        yield Metric("host_power", sum(series.mean for series in power), "W", "lower", how, samples=_count(power))


def _energy(
    name: str, whose: str, found: Iterable[Energy | None], training: Phase, p_whole: float | None
) -> Iterator[Metric]:
    """Of all, or none: a sum in which some are missing says nothing."""
    energies = list(found)
    known = [energy for energy in energies if energy is not None]
    if not known or len(known) < len(energies):
        return
    how = f"{' and '.join(sorted({energy.how for energy in known}))}, {WHILE}"
    joules = sum(energy.joules for energy in known)
    yield Metric(f"{name}_energy", joules, "J", "lower", f"{whose} together: {how}")
    covered = min(energy.covered for energy in known)
    yield Metric(
        f"{name}_energy_covered", covered, "share", "higher", f"the share of the time {WHILE} that was sampled"
    )
    if p_whole is not None and p_whole > 0:
        # A gap is taken to have been like the rest; of a training that was taken up again, this part is like the first.
        watts = sum(energy.joules / (energy.covered * training.seconds) for energy in known)
        how = f"{whose} together: their mean power in the sampled share of the time, over p_whole; {how}"
        yield Metric(f"{name}_energy_per_sample", watts / p_whole, "J/sample", "lower", how)


def _gaps(samples: Mapping[str, Samples], training: Phase) -> Iterator[Metric]:
    there = [host for host in samples.values() if host.host or host.devices]
    if there:
        lost = sum(gap.seconds for host in there for gap in host.gaps)
        lost += training.seconds * (len(samples) - len(there))
        how = f"time {WHILE} in which a host was not sampled, summed"
        yield Metric("monitor_gaps", lost, "s", "lower", how, samples=len(samples))


def _of_devices(samples: Mapping[str, Samples], name: str) -> list[Series]:
    return [series[name] for host in samples.values() for series in host.devices.values() if name in series]


def _mean(
    name: str, found: list[Series], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[Metric]:
    if found:
        value = statistics.fmean(series.mean for series in found) * scale
        yield Metric(name, value, unit, direction, how, samples=_count(found))


def _highest(
    name: str, found: list[Series], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[Metric]:
    if found:
        value = max(series.highest for series in found) * scale
        yield Metric(name, value, unit, direction, how, samples=_count(found))


def _count(found: Iterable[Series]) -> int:
    return sum(len(series.values) for series in found)
