"""The class Verdict, and the verdicts on every round: it finished, its figures are possible, nothing distorted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.logs import range_texts
from pytest_flagperf.results.logs.log_ownership import LOG
from pytest_flagperf.results.measured.consistency import CONTRADICTION
from pytest_flagperf.results.measured.outcome import Outcome

_AT_MOST = 3
"""Maximum number of impossible figures in one sentence; the others are counted."""


class VerdictKind(StrEnum):
    """The kinds of the verdicts that all kinds of suites have; other verdicts have the kind of their criterion."""

    FINISHED = "finished"
    FIGURES = "figures"
    """The logs belong to the round, and their figures are possible and consistent."""
    VALID = "valid"
    """No validity warning."""
    BASELINE = "baseline"
    """A figure compared with the accepted one."""
    INCOMPARABLE = "incomparable"
    """A baseline that cannot be read or compared with."""
    PLUGIN = "plugin"
    """A verdict of an installed plugin."""
    EXPECTED = "expected"
    """A failure that was expected and did not happen."""
    OTHER = "other"
    """A test's own result, or a lost record or worker."""


OF_EVERY_KIND: Mapping[str, str] = {
    "finished": "every rank of the round ended without an error",
    "own_log": "each rank's log belongs to this round, host and rank, and no curve is that of an earlier round",
    "consistent": "figures that are measured in two ways agree",
    "in_range": "every logged figure has a possible value",
    "valid": "no validity warning; fails only with --strict",
    "baseline": "no figure is worse than the accepted one; its kind is incomparable if the baseline does not apply",
    "expected": "an expected failure occurred; fails only with --strict",
    "record": "the stored verdicts of a test can be written and read",
    "worker": "the process of pytest-xdist that ran the test did not die",
}
"""The verdicts that all kinds of suites have, each with when it passes; the criteria of the kinds have the others."""


@dataclass(frozen=True)
class Verdict:
    """One named judgement; the ``sentence`` of a failure or a warning includes what was got and expected."""

    name: str
    ok: bool
    got: str
    expected: str
    sentence: str = ""
    """Empty if the verdict passed and ``got`` and ``expected`` are all there is to report."""
    expected_failure: str | None = None
    """The reason why this failure was expected; None for all other verdicts."""
    warning: bool = False
    """The verdict passed, but its sentence is a warning."""
    kind: str = VerdictKind.OTHER
    judged: bool = True
    """False: the verdict passed because nothing could be judged; the headline of the run counts it."""
    change: float | None = None
    """The change from the accepted figure as a share; only of a comparison with a baseline."""

    def of_kind(self, kind: str) -> Verdict:
        """Return the verdict with this kind, unless it has one."""
        return replace(self, kind=kind) if self.kind == VerdictKind.OTHER else self


_AGREE = "figures that agree"
_FIGURES = {CONTRADICTION: ("consistent", _AGREE), LOG: ("own_log", "the log of this round")}


def finished(outcome: Outcome) -> list[Verdict]:
    """Judge whether the round finished on every rank, its logs belong to it, and its figures agree."""
    kind = VerdictKind.FINISHED
    verdicts = [Verdict("finished", True, outcome.state, "finished", kind=kind)] if outcome.ended_well else []
    if outcome.ok:
        pairs = count(outcome.compared, "pair")
        consistent = Verdict("consistent", True, pairs, _AGREE, kind=VerdictKind.FIGURES)
        return [*verdicts, consistent] if outcome.compared else verdicts
    if not outcome.failures:
        sentence = f"round {outcome.round}: its state is {outcome.state!r}, expected 'finished'"
        return [Verdict("finished", False, outcome.state, "finished", sentence, kind=kind)]
    for failure in outcome.failures:
        name, expected = _FIGURES.get(failure.kind, ("finished", "finished"))
        kind = VerdictKind.FIGURES if failure.kind in _FIGURES else VerdictKind.FINISHED
        verdicts.append(Verdict(name, False, failure.kind, expected, failure.sentence, kind=kind))
    return verdicts


def in_range(outcome: Outcome) -> Verdict:
    """Judge whether every figure that the ranks logged is possible."""
    impossible, expected = outcome.impossible, "each figure within its range"
    if not impossible:
        return Verdict("in_range", True, "all", expected, kind=VerdictKind.FIGURES)
    sentences = "; ".join(range_texts.impossible_figure(figure) for figure in impossible[:_AT_MOST])
    more = f"; and {len(impossible) - _AT_MOST} more" if len(impossible) > _AT_MOST else ""
    names = ", ".join(dict.fromkeys(figure.name for figure in impossible))
    sentence = f"round {outcome.round}: impossible figures: {sentences}{more}"
    return Verdict("in_range", False, names, expected, sentence, kind=VerdictKind.FIGURES)


def valid(outcome: Outcome, *, strict: bool) -> Verdict:
    """Judge whether a round has validity warnings; it fails for them only if ``strict``."""
    expected = "no validity warning"
    if not outcome.validity_warnings:
        return Verdict("valid", True, "none", expected, kind=VerdictKind.VALID)
    kinds = ", ".join(dict.fromkeys(warning.kind for warning in outcome.validity_warnings))
    sentences = "; ".join(dict.fromkeys(warning.sentence for warning in outcome.validity_warnings))
    sentence = f"round {outcome.round}: measurements may be distorted: {sentences}"
    return Verdict("valid", not strict, kinds, expected, sentence, kind=VerdictKind.VALID)


def failed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if not verdict.ok]


def is_regression(failures: Sequence[Verdict]) -> bool:
    """Return True if all failures are figures that are worse than the accepted ones."""
    return bool(failures) and all(verdict.kind == VerdictKind.BASELINE for verdict in failures)
