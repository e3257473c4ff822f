"""One named judgement, and the first of every round: it ran to its end, in range, with nothing that distorts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.logs.ownlog import LOG
from pytest_flagperf.results.measured.crosscheck import CONTRADICTION
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import count

_AT_MOST = 3
"""A sentence names no more impossible figures than this; the others are counted."""


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


_AGREE = "figures that agree"
_OTHERS = {CONTRADICTION: ("consistent", _AGREE), LOG: ("own_log", "the log of this round")}


def finished(outcome: Outcome | None) -> list[Verdict]:
    """The round ran to its end on every rank, its logs are its own, and its figures agree."""
    if outcome is None:
        return [Verdict("finished", False, "no outcome", "finished", "the round left no outcome at all")]
    found = []
    if outcome.ended_well:
        sentence = f"round {outcome.round}: every rank finished ({outcome.stop_reason or 'no reason given'})"
        found.append(Verdict("finished", True, outcome.state, "finished", sentence))
    if outcome.ok:
        return [*found, *([_consistent(outcome)] if outcome.compared else [])]
    if not outcome.failures:
        sentence = f"round {outcome.round}: its state is {outcome.state!r}, wanted 'finished'"
        return [Verdict("finished", False, outcome.state, "finished", sentence)]
    for failure in outcome.failures:
        name, wanted = _OTHERS.get(failure.kind, ("finished", "finished"))
        found.append(Verdict(name, False, failure.kind, wanted, failure.sentence))
    return found


def _consistent(outcome: Outcome) -> Verdict:
    pairs = count(outcome.compared, "pair")
    sentence = f"round {outcome.round}: {pairs} of figures that are measured in two ways agree"
    return Verdict("consistent", True, pairs, _AGREE, sentence)


def in_range(outcome: Outcome) -> Verdict:
    """Whether a training can have every figure that the ranks logged."""
    found, expected = outcome.impossible, "each figure within its range"
    if not found:
        return Verdict("in_range", True, "all", expected, f"round {outcome.round}: every logged figure is possible")
    got = "; ".join(each.sentence for each in found[:_AT_MOST])
    more = f"; and {len(found) - _AT_MOST} more" if len(found) > _AT_MOST else ""
    names = ", ".join(dict.fromkeys(each.name for each in found))
    return Verdict("in_range", False, names, expected, f"round {outcome.round}: impossible figures: {got}{more}")


def valid(outcome: Outcome, *, strict: bool) -> Verdict:
    """Whether nothing distorted a round's measurements; marks are warnings, and failures under strict."""
    expected = "nothing that bends the figures"
    if not outcome.marks:
        return Verdict("valid", True, "nothing", expected, f"round {outcome.round}: nothing bent its figures")
    kinds = ", ".join(dict.fromkeys(mark.kind for mark in outcome.marks))
    what = "; ".join(dict.fromkeys(mark.sentence for mark in outcome.marks))
    return Verdict("valid", not strict, kinds, expected, f"round {outcome.round}: its figures are bent: {what}")


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]
