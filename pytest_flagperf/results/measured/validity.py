"""Whether a round's figures may be taken at their word: what happened that bends them, each a mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.node.sampling.devices import NO_THROTTLING, POWER_CAP
from flagperf_driver.node.sampling.notes import CLOCK_SET, KINDS
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.samples import Gap, Reasons, Samples
from pytest_flagperf.results.units import quantity
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import host_of, round_number
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round import RoundDir, rounds_of

from . import busy
from .phases import Phase

THROTTLED, UNSEEN, SEED, BUSY = "throttled", "gap", "seed", "busy"
_THROTTLED_SHARE = 0.01
_UNSEEN_SHARE, _UNSEEN_S, _UNSEEN_AT_ONCE_S = 0.1, 3.0, 30.0


@dataclass(frozen=True)
class Mark:
    """``kind`` is one word for machines, ``sentence`` stands alone."""

    kind: str
    sentence: str


def marks(
    round_dir: Path,
    plan: StoredPlan,
    samples: Mapping[str, Samples] | None = None,
    training: Phase | None = None,
) -> tuple[Mark, ...]:
    """What bends the figures of a round; ``samples`` are those of its directory."""
    samples = monitors.read(round_dir) if samples is None else samples
    reports = monitors.reports(round_dir)
    found = [mark for host, its in samples.items() for mark in _of_host(host, its, reports[host], plan, training)]
    return (*found, *seed_again(round_dir, plan.seed))


def _of_host(
    folder: str, samples: Samples, report: Mapping[str, Any], plan: StoredPlan, training: Phase | None
) -> Iterator[Mark]:
    host = host_of(folder)
    yield from (Mark(event.kind, f"{host}: {event.sentence}") for event in samples.events if event.kind in KINDS)
    if training is None:
        return
    within = samples.between(training.start, training.end)
    yield from _throttled(host, within, report)
    yield from (Mark(BUSY, sentence) for sentence in busy.marks(folder, samples, report, training))
    # A training of a moment may fall between two samples.
    lacking = list(_lacking(host, within if training.seconds >= _UNSEEN_S else samples, plan))
    yield from lacking or _unseen(host, within, training)


# -- clocks that were held back ------------------------------------------------------------------------------


def _throttled(host: str, samples: Samples, report: Mapping[str, Any]) -> Iterator[Mark]:
    """One mark for all devices of a host that were held back for the same reasons."""
    alike: dict[tuple[str, ...], dict[int, float]] = {}
    for device, held in samples.held.items():
        bad = _reasons(held) - (set() if _is_capped(report, device) else {POWER_CAP})
        share = _share(held, bad)
        if share >= _THROTTLED_SHARE:
            alike.setdefault(tuple(sorted(bad)), {})[device] = share
    for reasons, shares in alike.items():
        who = f"device {_list(shares)} was" if len(shares) == 1 else f"devices {_list(shares)} were"
        most = "up to " if len(shares) > 1 else ""
        how = f"{most}{quantity(max(shares.values()), 'share')} of the training"
        limit = f", {_limit(report, min(shares))}" if POWER_CAP in reasons else ""
        yield Mark(THROTTLED, f"{host}: {who} slowed down in {how} by {_list(reasons)}{limit}")


def _reasons(held: Reasons) -> set[str]:
    return {reason for name in held.names for reason in name.split("+")} - NO_THROTTLING


def _share(held: Reasons, bad: set[str]) -> float:
    """Of the samples, those with any of the reasons."""
    codes = {code for code, name in enumerate(held.names) if bad.intersection(name.split("+"))}
    return sum(code in codes for code in held.codes) / len(held.codes) if held.codes else 0.0


def _is_capped(report: Mapping[str, Any], device: int) -> bool:
    """Whether its power was limited below what is usual for it."""
    limit, usual = _limits(report, device)
    return limit is not None and usual is not None and limit < usual


def _limit(report: Mapping[str, Any], device: int) -> str:
    return "limited to {:g} W where {:g} W are usual".format(*_limits(report, device))


def _limits(report: Mapping[str, Any], device: int) -> tuple[Any, Any]:
    facts: Mapping[str, Any] = next((one for one in report.get("devices") or () if one.get("index") == device), {})
    return facts.get("power_limit"), facts.get("usual_power_limit")


# -- what was not sampled ------------------------------------------------------------------------------------


def _lacking(host: str, samples: Samples, plan: StoredPlan) -> Iterator[Mark]:
    """A host or devices of which there is nothing; only where it is known that there should be."""
    wanted = plan.monitors
    if wanted is None:
        return
    if not samples.host:
        yield Mark(UNSEEN, f"{host} was not sampled at all during the training")
    elif not samples.devices and (wanted.get("nvml") or wanted.get("probe")):
        why = next((text for text in samples.missing if text.startswith("devices: ")), "").partition(": ")[2]
        yield Mark(UNSEEN, f"{host}: no device was sampled during the training" + (f": {why}" if why else ""))


def _unseen(host: str, samples: Samples, training: Phase) -> Iterator[Mark]:
    """A clock that was set forward leaves a hole in the times which is none."""
    if samples.skimmed:
        return
    lost = [gap.seconds - _set_forward(samples, gap) for gap in samples.gaps]
    whole, longest = sum(lost), max(lost, default=0.0)
    if longest >= _UNSEEN_AT_ONCE_S or (whole >= _UNSEEN_S and whole >= _UNSEEN_SHARE * training.seconds):
        seconds = quantity(training.seconds, "s")
        once = f", {quantity(longest, 's')} of it at once" if len(lost) > 1 else ""
        who = f"{host}{_whose(samples)} not sampled for {quantity(whole, 's')}"
        yield Mark(UNSEEN, f"{who} of the training's {seconds}{once}")


def _whose(samples: Samples) -> str:
    """Its devices, or some of them, if the host itself was sampled."""
    found = sorted({device for gap in samples.gaps for device in gap.devices})
    if not all(gap.devices for gap in samples.gaps):
        return " was"
    if len(found) == 1:
        return f": device {found[0]} was"
    return ": its devices were" if len(found) == len(samples.devices) else f": devices {_list(found)} were"


def _set_forward(samples: Samples, gap: Gap) -> float:
    end = gap.start + gap.seconds
    steps = [event for event in samples.events if event.kind == CLOCK_SET and gap.start <= event.time <= end + 1.0]
    return min(gap.seconds, sum(max(0.0, event.seconds) for event in steps))


# -- seeds ---------------------------------------------------------------------------------------------------


def seed_again(round_dir: Path, seed: int) -> Iterator[Mark]:
    """The later of two rounds of a case with one seed is marked: it says again what the first one said."""
    own = round_number(round_dir.name)
    if own is None:
        return
    for other in rounds_of(round_dir.parent):
        if (round_number(other.path.name) or own) < own and _seed(other) == seed:
            as_then = f"seed {seed}, as {other.path.name} did"
            yield Mark(SEED, f"{round_dir.name} trained with {as_then}: rounds of a case are to be independent")
            return


def _seed(directory: RoundDir) -> int | None:
    try:
        return directory.read_plan().seed
    except FormatError:
        return None


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
