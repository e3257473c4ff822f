"""One named judgement, and the first one asked for: whether a round ran to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.crosscheck import CONTRADICTION
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.ownlog import LOG
from pytest_flagperf.results.units import count


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


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]
