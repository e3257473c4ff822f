"""One named judgement, and the first one asked for: whether a round ran to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.outcome import Outcome


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


def finished(outcome: Outcome | None) -> list[Verdict]:
    """The round ran to its end on every rank."""
    if outcome is None:
        return [Verdict("finished", False, "no outcome", "finished", "the round left no outcome at all")]
    if outcome.ok:
        sentence = f"round {outcome.round}: every rank finished ({outcome.stop_reason or 'no reason given'})"
        return [Verdict("finished", True, outcome.state, "finished", sentence)]
    if not outcome.failures:
        sentence = f"round {outcome.round}: its state is {outcome.state!r}, wanted 'finished'"
        return [Verdict("finished", False, outcome.state, "finished", sentence)]
    return [Verdict("finished", False, failure.kind, "finished", failure.sentence) for failure in outcome.failures]


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]
