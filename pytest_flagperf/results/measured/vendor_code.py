"""The vendor code of a round: the code and settings that the plan lists, and those that the ranks reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flagperf_driver.node.logs.ranklog import RankLog
from pytest_flagperf.results.measured.validity import NOT_CONFINED, NOT_REPEATED, VENDOR_CODE, ValidityWarning
from pytest_flagperf.stored.layout import host_of
from pytest_flagperf.stored.plan import KNOWN_PROBLEM, StoredPlan

KINDS = ("step", "hook", "module", "extension", "package", "variable", "command")
"""The first word of a deviation that is vendor code, as in "step backward"; a deviation of the config has one word."""
_REPORTED = {"step": "replaced", "hook": "replaced_hooks"}
"""Kinds that a rank reports, by the field of INIT_END."""
_MAX_NAMES = 4


def names(fingerprint: Mapping[str, Any]) -> tuple[str, ...]:
    """The vendor code that a fingerprint lists, by kind: ("step backward", "hook events", "module torch_x")."""
    deviations = fingerprint.get("deviations")
    listed = [str(name).partition(" ") for name in deviations] if isinstance(deviations, Mapping) else []
    return tuple(f"{kind} {name}" for kind in KINDS for first, _, name in listed if first == kind and name)


def known_problems(fingerprint: Mapping[str, Any]) -> tuple[str, ...]:
    """The problems that the vendor states of its case, which excuse nothing."""
    deviations = fingerprint.get("deviations")
    listed = deviations.items() if isinstance(deviations, Mapping) else ()
    return tuple(
        str(pair[0]) for name, pair in listed if str(name).startswith(KNOWN_PROBLEM) and isinstance(pair, list)
    )


def phrase(vendor: str, listed: Iterable[str], factor: float | None = None) -> str:
    """Describe the vendor code in a few words: "acme's own steps backward and create_optimizer".

    ``factor``: the time of the suite's own steps over that of the vendor's.
    """
    by_kind: dict[str, list[str]] = {}
    for kind, _, name in (item.partition(" ") for item in listed):
        by_kind.setdefault(kind, []).append(name)
    groups = [f"{kind}{'s' if len(names) > 1 else ''} {_some(names)}" for kind, names in by_kind.items()]
    gain = "" if factor is None else f" (the vendor's steps: {factor:.2f} times the suite's own)"
    return f"{vendor}'s own {', '.join(groups)}{gain}" if groups else ""


def reported(init_end: Mapping[str, Any], kind: str) -> list[str]:
    """The names of the steps or hooks that a rank reported as replaced."""
    value = init_end.get(_REPORTED[kind])
    return list(map(str, value)) if isinstance(value, list) else []


def validity_warnings(plan: StoredPlan, logs: Iterable[RankLog]) -> tuple[ValidityWarning, ...]:
    """Return a warning for each step or hook that the plan lists and ranks did not report, or the other way round."""
    planned = {name for name in names(plan.fingerprint) if name.partition(" ")[0] in _REPORTED}
    begun = {log.rank: set(_of_rank(log)) for log in logs if log.init_end}
    return tuple(_differences(planned, begun, plan.vendor))


def confinement(
    plan: StoredPlan, seen: Mapping[str, tuple[object, str | None]]
) -> tuple[list[ValidityWarning], list[str]]:
    """Return the validity warnings, or without vendor code the remarks, of host folders with unconfined ranks."""
    sentences = [
        f"{host_of(folder)}: the ranks' files could not be confined: {reason}"
        for folder, (_, reason) in seen.items()
        if reason
    ]
    if names(plan.fingerprint):
        return [ValidityWarning(NOT_CONFINED, sentence) for sentence in sentences], []
    return [], sentences


def not_repeated(plan: StoredPlan) -> Iterator[ValidityWarning]:
    """Yield a warning if the vendor's code needs a replay that the training could not have."""
    if reason := plan.replay.get("missing"):
        yield ValidityWarning(
            NOT_REPEATED, f"no clean process repeated a part of it without the vendor's code: {reason}"
        )


def _of_rank(log: RankLog) -> Iterator[str]:
    for kind in _REPORTED:
        yield from (f"{kind} {name}" for name in reported(log.init_end, kind))


def _differences(planned: set[str], begun: Mapping[int, set[str]], vendor: str) -> Iterator[ValidityWarning]:
    for name in sorted(planned.union(*begun.values())):
        listed = name in planned
        others = [rank for rank, replaced in begun.items() if (name in replaced) != listed]
        if others and listed:
            yield ValidityWarning(
                VENDOR_CODE, f"the plan lists {vendor}'s own {name}, but {_who(others, len(begun))} did not report it"
            )
        elif others:
            yield ValidityWarning(
                VENDOR_CODE, f"{_who(others, len(begun))} reported {vendor}'s own {name}, but the plan does not list it"
            )


def _who(ranks: Sequence[int], of: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"all {of} ranks" if len(ranks) == of else f"{len(ranks)} of {of} ranks, the first is rank {ranks[0]},"


def _some(words: Sequence[str]) -> str:
    """The first words, and the number of the others."""
    shown, more = words[:_MAX_NAMES], len(words) - _MAX_NAMES
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
