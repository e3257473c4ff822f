"""Metrics from the samples of hosts and devices: those of the training, or of the measured steps of a throughput."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flagperf_driver.node.logs.samples import DeviceWindow, HostWindow, Quantity, Samples
from flagperf_driver.node.sampling.devices import NO_THROTTLING
from pytest_flagperf.results.figures.units import signed
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.phases import Phase
from pytest_flagperf.stored.layout import host_of

MIB = 2**20
_DIFFER = 0.1
"""Allowed difference between an energy counter and the integral of the power, which drivers report inexactly."""
_AVERAGED_S = 1.0
"""Drivers report the mean power over this time, so the integral lags behind the counter."""


def figures(samples: Mapping[str, Samples], window: Phase | None, rate: MetricValue | None) -> tuple[MetricValue, ...]:
    """Return the metrics of all quantities that were sampled in the window; ``rate`` is its throughput."""
    if window is None:
        return ()
    start, end = window.start, window.end
    inside = [host.window(start, end) for host in samples.values()]
    devices = [device for host in inside for device in host.devices]
    during = window.between
    others = (*_devices(devices, samples), *_hosts(inside, samples), *_gaps(inside, window))
    return (
        *(replace(metric, how=f"{metric.how}, {during}") for metric in others),
        *_energy("device", "all devices", devices, window, rate, during, _difference(devices)),
        *_energy("host", "all hosts", inside, window, rate, during, _source(samples, "power")),
    )


def _devices(devices: Sequence[DeviceWindow], samples: Mapping[str, Samples]) -> Iterator[MetricValue]:
    source = _source(samples, "devices")
    power, temperature = _of_devices(devices, "power"), _of_devices(devices, "temperature")
    yield from _mean("device_power", power, "W", "lower", f"a device's mean, over the devices{source}")
    yield from _highest("device_power_highest", power, "W", "lower", f"the highest of any device{source}")
    yield from _mean("device_temperature", temperature, "C", "lower", f"mean over the devices{source}")
    how = f"the highest of any device{source}"
    yield from _highest("device_temperature_highest", temperature, "C", "lower", how)
    used, memory = _of_devices(devices, "utilization"), _of_devices(devices, "memory_used")
    yield from _mean("device_utilization", used, "share", None, f"mean over the devices{source}", 0.01)
    yield from _highest("device_memory", memory, "bytes", "lower", f"the most of any device{source}", MIB)
    yield from _mean("device_memory_mean", memory, "bytes", "lower", f"mean over the devices{source}", MIB)
    whole = _of_devices(devices, "memory_total")
    yield from _highest("device_memory_total", whole, "bytes", None, f"what a device has{source}", MIB)
    for name in ("sm_clock", "memory_clock"):
        clock = _of_devices(devices, name)
        yield from _mean(f"device_{name}", clock, "MHz", None, f"mean over the devices{source}")
    held = [device for device in devices if device.held]
    if held:
        reasons = (item for device in held for item in device.throttle.items())
        value = max((share for reason, share in reasons if reason not in NO_THROTTLING), default=0.0)
        how = f"the largest share of samples in which one reason held a device's clocks back{source}"
        count = sum(sum(device.held.values()) for device in held)
        yield MetricValue("device_throttled", value, "share", "lower", how, samples=count)


def _source(samples: Mapping[str, Samples], name: str) -> str:
    """The source of a quantity, without the remark in brackets."""
    means = sorted({text.partition(" (")[0] for host in samples.values() if (text := host.read_from(name))})
    return f", read from {' and '.join(means)}" if means else ""


def _hosts(inside: Sequence[HostWindow], samples: Mapping[str, Samples]) -> Iterator[MetricValue]:
    cpu, memory, power = (
        [host.host[name] for host in inside if name in host.host] for name in ("cpu", "memory", "power")
    )
    yield from _mean("host_cpu", cpu, "share", None, "mean share of all cores, over the hosts")
    yield from _highest("host_memory", memory, "share", "lower", "the most of any host")
    if power and len(power) == len(samples):
        how = f"the hosts' means, summed{_source(samples, 'power')}"
        yield MetricValue("host_power", sum(series.mean for series in power), "W", "lower", how, samples=_count(power))


def _energy(
    name: str,
    owner: str,
    windows: Sequence[HostWindow] | Sequence[DeviceWindow],
    window: Phase,
    rate: MetricValue | None,
    during: str,
    more: str,
) -> Iterator[MetricValue]:
    """Yield the energy metrics; nothing if the energy of any device or host is missing."""
    known = [one.energy for one in windows if one.energy is not None]
    if not known or len(known) < len(windows):
        return
    how = f"{' and '.join(sorted({energy.how for energy in known}))}, {during}"
    joules = sum(energy.joules for energy in known)
    yield MetricValue(f"{name}_energy", joules, "J", "lower", f"{owner} together: {how}{more}")
    covered = min(energy.covered for energy in known)
    yield MetricValue(
        f"{name}_energy_covered", covered, "share", "higher", f"the share of the time {during} that was sampled"
    )
    if rate is not None and rate.value > 0:
        # Assume the mean power also in gaps, and in the part of a resumed training before this run.
        watts = sum(energy.joules / (energy.covered * window.seconds) for energy in known)
        how = f"{owner} together: their mean power in the sampled share of the time, over {rate.name}; {how}"
        yield MetricValue(f"{name}_energy_per_sample", watts / rate.value, "J/sample", "lower", how)


def _difference(devices: Sequence[DeviceWindow]) -> str:
    """Describe the difference between the integral of the power of all devices and their counters."""
    known = [device.pair for device in devices if device.pair is not None]
    counted = sum(pair.counted.joules for pair in known)
    if not known or len(known) < len(devices) or counted <= 0:
        return ""
    share = sum(pair.integral.joules / pair.integral.covered * pair.counted.covered for pair in known) / counted - 1
    return f"; by the integral of its power it would be {signed(share)}"


def energy_warnings(samples: Mapping[str, Samples], training: Phase | None) -> Iterator[str]:
    """Yield a sentence for the devices of each host whose energy counter and power disagree."""
    if training is None:
        return
    for folder, host in samples.items():
        devices = host.window(training.start, training.end).devices
        shares = {one.index: share for one in devices if (share := _deviation(one, training)) is not None}
        if shares:
            worst = max(shares.values(), key=abs)
            which = f"device{'s' if len(shares) > 1 else ''} {', '.join(map(str, shares))}"
            up_to = "up to " if len(shares) > 1 else ""
            yield (
                f"{host_of(folder)}: {which}: the energy counter differs by {up_to}{signed(worst)} from the integral"
                " of the power; device_energy uses the counter"
            )


@dataclass(frozen=True)
class Counted:
    """A device's energy of the training in J, by its counter and by its power; they may differ by ``noise``."""

    counted: float
    integral: float
    noise: float
    device: str = ""


def counted(samples: Mapping[str, Samples], training: Phase | None) -> tuple[Counted, ...]:
    """Return the energies of all devices that have both; without hosts whose clock was set, which distorts times."""
    if training is None:
        return ()
    samples = {folder: host for folder, host in samples.items() if not any(event.seconds for event in host.events)}
    return tuple(
        replace(energy, device=f"{host_of(folder)}: device {device.index}")
        for folder, host in samples.items()
        for device in host.window(training.start, training.end).devices
        if (energy := _counted(device, training)) is not None
    )


def _counted(device: DeviceWindow, training: Phase) -> Counted | None:
    pair = device.pair
    if pair is None:
        return None
    by_counter, integral = (energy.joules / energy.covered for energy in (pair.counted, pair.integral))
    if pair.power_error is None or not integral:
        return None
    lag, noise = _AVERAGED_S * pair.power_spread, 3 * pair.power_error * training.seconds
    return Counted(by_counter, integral, lag + noise)


def _deviation(device: DeviceWindow, training: Phase) -> float | None:
    """The deviation of the counter as a share of the integral; None if it is within the tolerance."""
    both = _counted(device, training)
    if both is None:
        return None
    more = both.counted - both.integral
    return more / both.integral if abs(more) > _DIFFER * both.integral + both.noise else None


def _gaps(inside: Sequence[HostWindow], window: Phase) -> Iterator[MetricValue]:
    sampled = [host for host in inside if host.host or host.sampled_devices]
    if sampled:
        lost = sum(gap.seconds for host in sampled for gap in host.gaps)
        lost += window.seconds * (len(inside) - len(sampled))
        how = "time in which a host was not sampled, summed"
        yield MetricValue("monitor_gaps", lost, "s", "lower", how, samples=len(inside))


def _of_devices(devices: Sequence[DeviceWindow], name: str) -> list[Quantity]:
    return [device.quantities[name] for device in devices if name in device.quantities]


def _mean(
    name: str, quantities: list[Quantity], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[MetricValue]:
    if quantities:
        value = statistics.fmean(series.mean for series in quantities) * scale
        yield MetricValue(name, value, unit, direction, how, samples=_count(quantities))


def _highest(
    name: str, quantities: list[Quantity], unit: str, direction: str | None, how: str, scale: float = 1.0
) -> Iterator[MetricValue]:
    if quantities:
        value = max(series.highest for series in quantities) * scale
        yield MetricValue(name, value, unit, direction, how, samples=_count(quantities))


def _count(quantities: Iterable[Quantity]) -> int:
    return sum(one.count for one in quantities)
