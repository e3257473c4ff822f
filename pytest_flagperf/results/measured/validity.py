"""Validity warnings: conditions that distort the measurements of a round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from flagperf_driver.node.logs.samples import DeviceWindow, Event, Gap, HostWindow, Samples
from flagperf_driver.node.sampling.devices import NO_THROTTLING, POWER_CAP
from flagperf_driver.node.sampling.notes import CHANGED, CLOCK_SET, FOREIGN, KINDS
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import host_of, round_number
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundDir, RoundRecord, rounds_of

from . import busy
from .phases import Phase

THROTTLED, GAP, SEED, BUSY, VENDOR_CODE = "throttled", "gap", "seed", "busy", "vendor_code"
NOT_CONFINED, NOT_REPEATED = "not_confined", "not_repeated"
RESTARTED, UNREACHABLE, POWER = "restarted", "unreachable", "power"
WARNINGS: Mapping[str, str] = {
    THROTTLED: "a device was slowed down by heat, power brakes or a similar reason in 1 % of the training or more",
    POWER: "a device reported a power of less than 10 W in the training, or of more than 1.3 times its limit",
    FOREIGN: "a process outside the round computed on one of its devices",
    GAP: "a host or its devices were not sampled for 30 s at once, or for 3 s and a tenth of the training in total",
    UNREACHABLE: "a host did not answer for 30 s at once, or 3 s and a twentieth of the training in all, and came back",
    CLOCK_SET: "a host's clock was set by more than 0.5 s",
    CHANGED: "a device was lost, replaced or partitioned, or its firmware, driver, power limit, links to others, "
    "or PCIe lanes under load changed",
    SEED: "an earlier round of the case had the same seed",
    VENDOR_CODE: "a rank reported a replaced step or hook that is not in the plan, or did not report one of the plan's",
    NOT_CONFINED: "a kernel could not confine ranks with vendor code",
    NOT_REPEATED: "no clean process could read the states of a training with vendor code",
    RESTARTED: "the training was started several times, so that its throughputs are not those of one process",
    BUSY: "a rank waited for a core in 8 % of the training or measurement or more while processes outside the round "
    "used the cores, or the hypervisor gave 5 % of the cores' working time to other machines",
}
"""The kinds of validity warnings, each with its condition."""
_THROTTLED_SHARE = 0.01
_GAPS_SHARE, _GAPS_S, _LONGEST_GAP_S = 0.1, 3.0, 30.0
_SILENT_SHARE = 0.05
"""After a cut of the network the ranks' connections may need the same time again until they continue."""


@dataclass(frozen=True)
class ValidityWarning:
    """A condition that distorts a measurement; ``kind`` is one word for programs, ``sentence`` is for people."""

    kind: str
    sentence: str


def validity_warnings(
    round_dir: Path,
    plan: StoredPlan,
    samples: Mapping[str, Samples] | None = None,
    training: Phase | None = None,
) -> tuple[ValidityWarning, ...]:
    """Return the validity warnings of a round; without ``samples`` those of its directory are read."""
    samples = monitors.read(round_dir) if samples is None else samples
    reports = monitors.reports(round_dir)
    of_hosts = (_of_host(host, own, reports[host], plan, training) for host, own in samples.items())
    return (*chain.from_iterable(of_hosts), *_reused_seed(round_dir, plan.seed))


def _of_host(
    folder: str, samples: Samples, report: Mapping[str, Any], plan: StoredPlan, training: Phase | None
) -> Iterator[ValidityWarning]:
    host = host_of(folder)
    yield from (
        ValidityWarning(event.kind, f"{host}: {event.sentence}") for event in samples.events if event.kind in KINDS
    )
    if training is None:
        return
    within = samples.window(training.start, training.end)
    yield from _throttled(host, within, report)
    used = next((placed.devices for placed in plan.hosts if placed.folder == folder), ())
    yield from _impossible_power(host, [device for device in within.devices if device.index in used], report)
    yield from (
        ValidityWarning(BUSY, sentence) for sentence in busy.validity_warnings(folder, samples, report, training)
    )
    # A very short training may fall between two samples.
    judged = within if training.seconds >= _GAPS_S else samples.window()
    missing = list(_not_sampled(host, judged, samples.missing, plan))
    yield from missing or _gaps(host, within, samples.events, training)


def unreachable_s(end: RoundRecord | None, training: Phase | None) -> dict[str, float]:
    """Return for how long each host was lost in the training and came back, if it was long enough for a warning."""
    if end is None or training is None:
        return {}
    lost: dict[str, list[float]] = {}
    for silence in end.silences:
        begin, until = max(silence.from_ms / 1000, training.start), min(silence.until_ms / 1000, training.end)
        if until > begin:
            lost.setdefault(silence.host, []).append(until - begin)
    least = max(_GAPS_S, _SILENT_SHARE * training.seconds)
    return {host: sum(times) for host, times in lost.items() if max(times) >= _LONGEST_GAP_S or sum(times) >= least}


def unreachable(end: RoundRecord | None, training: Phase | None) -> Iterator[ValidityWarning]:
    """Yield a warning for each host that was lost for a part of the training, and came back."""
    for host, lost_s in unreachable_s(end, training).items():
        seconds = training.seconds if training else 0.0
        times_s = f"{quantity(lost_s, 's')} of the training's {quantity(seconds, 's')}"
        sentence = f"{host} did not answer for {times_s}; if it or its network stood still, so did the ranks"
        yield ValidityWarning(UNREACHABLE, sentence)


def restarted(costs: str) -> ValidityWarning:
    """Return the warning of a training that was started several times; ``costs``: how often, and what that cost."""
    sentence = f"{costs}: p_core, step times, energy and other samples are those of the last start alone"
    return ValidityWarning(RESTARTED, f"the training was started {sentence}")


# -- throttled clocks ----------------------------------------------------------------------------------------


def _throttled(host: str, window: HostWindow, report: Mapping[str, Any]) -> Iterator[ValidityWarning]:
    """Yield one warning for all devices of a host that were slowed down for the same reasons."""
    by_reasons: dict[tuple[str, ...], dict[int, float]] = {}
    for device in window.devices:
        bad = {reason for name in device.held for reason in name.split("+")} - NO_THROTTLING
        limit, usual = _limits(report, device.index)
        bad -= set() if limit is not None and usual is not None and limit < usual else {POWER_CAP}
        times = sum(times for name, times in device.held.items() if bad.intersection(name.split("+")))
        throttled = times / sum(device.held.values()) if device.held else 0.0
        if throttled >= _THROTTLED_SHARE:
            by_reasons.setdefault(tuple(sorted(bad)), {})[device.index] = throttled
    for reasons, shares in by_reasons.items():
        devices = f"device {_list(shares)} was" if len(shares) == 1 else f"devices {_list(shares)} were"
        up_to = "up to " if len(shares) > 1 else ""
        share = f"{up_to}{quantity(max(shares.values()), 'share')}"
        limits = "limited to {:g} W where {:g} W are usual".format
        limit = f", {limits(*_limits(report, min(shares)))}" if POWER_CAP in reasons else ""
        yield ValidityWarning(
            THROTTLED, f"{host}: {devices} slowed down in {share} of the training by {_list(reasons)}{limit}"
        )


def _impossible_power(
    host: str, devices: Iterable[DeviceWindow], report: Mapping[str, Any]
) -> Iterator[ValidityWarning]:
    """Yield a warning for a device whose power no such chip can have while it computes."""
    for device in devices:
        power, (limit, _) = device.quantities.get("power"), _limits(report, device.index)
        most = inf if limit is None else float(limit)
        if power and not min(10.0, most / 10) <= power.mean <= power.highest <= 1.3 * most:
            watts = f"{power.mean:g} W in the mean and {power.highest:g} W at most, and a limit of {limit or '?'} W"
            yield ValidityWarning(POWER, f"{host}: device {device.index} reported {watts}; no such chip can")


def _limits(report: Mapping[str, Any], device: int) -> tuple[Any, Any]:
    facts: Mapping[str, Any] = next(
        (facts for facts in report.get("devices") or () if facts.get("index") == device), {}
    )
    return facts.get("power_limit"), facts.get("usual_power_limit")


# -- gaps in sampling ----------------------------------------------------------------------------------------


def _not_sampled(
    host: str, window: HostWindow, unavailable: Sequence[str], plan: StoredPlan
) -> Iterator[ValidityWarning]:
    """Yield a warning if a host or its devices have no samples although the plan lists monitors."""
    planned = plan.monitors
    if planned is None:
        return
    if not window.host:
        yield ValidityWarning(GAP, f"{host} was not sampled at all during the training")
    elif not window.sampled_devices and (planned.get("nvml") or planned.get("probe")):
        reason = next((text for text in unavailable if text.startswith("devices: ")), "").partition(": ")[2]
        sentence = f"{host}: no device was sampled during the training"
        yield ValidityWarning(GAP, f"{sentence}: {reason}" if reason else sentence)


def _gaps(host: str, window: HostWindow, events: Sequence[Event], training: Phase) -> Iterator[ValidityWarning]:
    """Yield a warning for long gaps between samples; a clock that was set forward makes no gap."""
    lost = [gap.seconds - _set_forward(events, gap) for gap in window.gaps]
    total, longest = sum(lost), max(lost, default=0.0)
    if longest >= _LONGEST_GAP_S or (total >= _GAPS_S and total >= _GAPS_SHARE * training.seconds):
        seconds = quantity(training.seconds, "s")
        once = f", {quantity(longest, 's')} of it at once" if len(lost) > 1 else ""
        who = f"{host}{_whose(window)} not sampled for {quantity(total, 's')}"
        yield ValidityWarning(GAP, f"{who} of the training's {seconds}{once}")


def _whose(window: HostWindow) -> str:
    """Name the devices that were not sampled; if the host itself was not, name the host."""
    devices = sorted({device for gap in window.gaps for device in gap.devices})
    if not all(gap.devices for gap in window.gaps):
        return " was"
    if len(devices) == 1:
        return f": device {devices[0]} was"
    return ": its devices were" if len(devices) == len(window.sampled_devices) else f": devices {_list(devices)} were"


def _set_forward(events: Sequence[Event], gap: Gap) -> float:
    end = gap.start + gap.seconds
    steps = [event for event in events if event.kind == CLOCK_SET and gap.start <= event.time <= end + 1.0]
    return min(gap.seconds, sum(max(0.0, event.seconds) for event in steps))


# -- seeds ---------------------------------------------------------------------------------------------------


def _reused_seed(round_dir: Path, seed: int) -> Iterator[ValidityWarning]:
    """Yield a warning if an earlier round of the case had the same seed: the rounds are not independent."""
    own = round_number(round_dir.name)
    if own is None:
        return
    for other in rounds_of(round_dir.parent):
        if (round_number(other.path.name) or own) < own and _seed(other) == seed:
            sentence = (
                f"{round_dir.name} reuses seed {seed} of {other.path.name}; rounds of a case need different seeds"
            )
            yield ValidityWarning(SEED, sentence)
            return


def _seed(directory: RoundDir) -> int | None:
    try:
        return directory.read_plan().seed
    except FormatError:
        return None


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
