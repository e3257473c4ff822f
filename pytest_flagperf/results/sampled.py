"""What hosts and devices did while a round ran, as a few figures; over the whole round, its start included."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from pytest_flagperf.results.metrics import Metric
from pytest_flagperf.results.monitors import Samples, Series

MIB = 2**20


def figures(samples: Mapping[str, Samples]) -> tuple[Metric, ...]:
    """Records like a round's own metrics; what was not sampled is not there."""
    return (*_devices(samples), *_hosts(samples))


def _devices(samples: Mapping[str, Samples]) -> Iterator[Metric]:
    means = sorted({found for host in samples.values() if (found := host.read_from("devices"))})
    source = f", read from {' and '.join(means)}" if means else ""
    power, temperature = _of_devices(samples, "power"), _of_devices(samples, "temperature")
    if power:
        yield Metric("device_power", _mean(power), "W", "lower", f"a device's mean, over the devices{source}")
        yield Metric("device_power_highest", _highest(power), "W", "lower", f"the highest of any device{source}")
    yield from _energy(samples)
    if temperature:
        yield Metric("device_temperature", _mean(temperature), "C", "lower", f"mean over the devices{source}")
        yield Metric("device_temperature_highest", _highest(temperature), "C", "lower", f"of any device{source}")
    if used := _of_devices(samples, "utilization"):
        yield Metric("device_utilization", _mean(used) / 100, "share", None, f"mean over the devices{source}")
    if memory := _of_devices(samples, "memory_used"):
        yield Metric("device_memory", _highest(memory) * MIB, "bytes", "lower", f"the most of any device{source}")
    if whole := _of_devices(samples, "memory_total"):
        yield Metric("device_memory_total", _highest(whole) * MIB, "bytes", None, f"what a device has{source}")
    shares = [share for host in samples.values() for held in host.throttle.values() for share in held.values()]
    if any(host.throttle for host in samples.values()):
        how = f"the largest share of samples in which one reason held a device's clocks back{source}"
        yield Metric("device_throttled", max(shares, default=0.0), "share", "lower", how)


def _energy(samples: Mapping[str, Samples]) -> Iterator[Metric]:
    """Of all devices, or none: a sum in which some are missing says nothing."""
    found = [host.energy(device) for host in samples.values() for device in host.devices]
    energies = [energy for energy in found if energy is not None]
    if energies and len(energies) == len(found):
        how = " and ".join(sorted({energy.how for energy in energies}))
        joules = sum(energy.joules for energy in energies)
        yield Metric("device_energy", joules, "J", "lower", f"all devices together: {how}")
        covered = min(energy.covered for energy in energies)
        yield Metric("device_energy_covered", covered, "share", "higher", "the share of the time that was sampled")


def _hosts(samples: Mapping[str, Samples]) -> Iterator[Metric]:
    cpu, memory, power = (
        [host.host[name] for host in samples.values() if name in host.host] for name in ("cpu", "memory", "power")
    )
    if cpu:
        yield Metric("host_cpu", _mean(cpu), "share", None, "mean share of all cores, over the hosts")
    if memory:
        yield Metric("host_memory", _highest(memory), "share", "lower", "the most of any host")
    if power and len(power) == len(samples):
        yield Metric("host_power", sum(series.mean for series in power), "W", "lower", "the hosts' means, summed")
    if any(host.host or host.devices for host in samples.values()):
        lost = sum(gap.seconds for host in samples.values() for gap in host.gaps)
        yield Metric("monitor_gaps", lost, "s", "lower", "time in which a host was not sampled, summed")


def _of_devices(samples: Mapping[str, Samples], name: str) -> list[Series]:
    return [series[name] for host in samples.values() for series in host.devices.values() if name in series]


def _mean(found: list[Series]) -> float:
    return statistics.fmean(series.mean for series in found)


def _highest(found: list[Series]) -> float:
    return max(series.highest for series in found)
