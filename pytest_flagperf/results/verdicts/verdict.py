"""One named judgement, and the first of every round: it ran to its end, in range, with nothing that distorts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_flagperf.results.logs.ownlog import LOG
from pytest_flagperf.results.measured.crosscheck import CONTRADICTION
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import count

_AT_MOST = 3
"""A sentence names no more impossible figures than this; the others are counted."""


class Kind(str, Enum):
    """What a verdict judges."""

    FINISHED = "finished"
    FIGURES = "figures"
    """Whether the logs are the round's own, and their figures possible and consistent."""
    CONVERGENCE = "convergence"
    VALID = "valid"
    """Whether something distorted the measurements."""
    THROUGHPUT = "throughput"
    SPEEDUP = "speedup"
    EFFICIENCY = "efficiency"
    BASELINE = "baseline"
    """A figure against the accepted one."""
    INCOMPARABLE = "incomparable"
    """A baseline that cannot be read or compared with."""
    EXPECTED = "expected"
    """A failure that was expected and did not happen."""
    OTHER = "other"
    """A test's own end, or a record or a worker that is lost."""


@dataclass(frozen=True)
class Verdict:
    """One named judgement; ``sentence`` stands alone and says got and wanted itself."""

    name: str
    ok: bool
    got: str
    wanted: str
    sentence: str
    expected: str | None = None
    """Why this failure is one that was told of beforehand; None for all others."""
    warning: bool = False
    """It is ok, and people should read its sentence all the same."""
    kind: Kind = Kind.OTHER

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Verdict:
        return cls(**{**body, "kind": Kind(body.get("kind", Kind.OTHER))})


_AGREE = "figures that agree"
_FIGURES = {CONTRADICTION: ("consistent", _AGREE), LOG: ("own_log", "the log of this round")}


def finished(outcome: Outcome | None) -> list[Verdict]:
    """The round ran to its end on every rank, its logs are its own, and its figures agree."""
    if outcome is None:
        return [
            Verdict("finished", False, "no outcome", "finished", "the round left no outcome at all", kind=Kind.FINISHED)
        ]
    found = []
    if outcome.ended_well:
        sentence = f"round {outcome.round}: every rank finished ({outcome.stop_reason or 'no reason given'})"
        found.append(Verdict("finished", True, outcome.state, "finished", sentence, kind=Kind.FINISHED))
    if outcome.ok:
        return [*found, *([_consistent(outcome)] if outcome.compared else [])]
    if not outcome.failures:
        sentence = f"round {outcome.round}: its state is {outcome.state!r}, wanted 'finished'"
        return [Verdict("finished", False, outcome.state, "finished", sentence, kind=Kind.FINISHED)]
    for failure in outcome.failures:
        name, wanted = _FIGURES.get(failure.kind, ("finished", "finished"))
        kind = Kind.FIGURES if failure.kind in _FIGURES else Kind.FINISHED
        found.append(Verdict(name, False, failure.kind, wanted, failure.sentence, kind=kind))
    return found


def _consistent(outcome: Outcome) -> Verdict:
    pairs = count(outcome.compared, "pair")
    sentence = f"round {outcome.round}: {pairs} of figures that are measured in two ways agree"
    return Verdict("consistent", True, pairs, _AGREE, sentence, kind=Kind.FIGURES)


def in_range(outcome: Outcome) -> Verdict:
    """Whether a training can have every figure that the ranks logged."""
    found, expected = outcome.impossible, "each figure within its range"
    if not found:
        return Verdict(
            "in_range",
            True,
            "all",
            expected,
            f"round {outcome.round}: every logged figure is possible",
            kind=Kind.FIGURES,
        )
    got = "; ".join(each.sentence for each in found[:_AT_MOST])
    more = f"; and {len(found) - _AT_MOST} more" if len(found) > _AT_MOST else ""
    names = ", ".join(dict.fromkeys(each.name for each in found))
    return Verdict(
        "in_range", False, names, expected, f"round {outcome.round}: impossible figures: {got}{more}", kind=Kind.FIGURES
    )


def valid(outcome: Outcome, *, strict: bool) -> Verdict:
    """Judge whether a round has validity warnings; it fails for them only if ``strict``."""
    expected = "no validity warning"
    if not outcome.validity_warnings:
        return Verdict("valid", True, "none", expected, f"round {outcome.round}: no validity warning", kind=Kind.VALID)
    kinds = ", ".join(dict.fromkeys(one.kind for one in outcome.validity_warnings))
    what = "; ".join(dict.fromkeys(one.sentence for one in outcome.validity_warnings))
    return Verdict(
        "valid",
        not strict,
        kinds,
        expected,
        f"round {outcome.round}: measurements may be distorted: {what}",
        kind=Kind.VALID,
    )


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]


def is_regression(failures: Sequence[Verdict]) -> bool:
    """Whether nothing failed but figures that are worse than the accepted ones."""
    return bool(failures) and all(verdict.kind is Kind.BASELINE for verdict in failures)
