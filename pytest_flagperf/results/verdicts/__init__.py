"""Judgements of outcomes: pure functions; what is missing, not a number or unfinished is a failed verdict."""

from __future__ import annotations

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import convergence, likeness
from pytest_flagperf.results.verdicts.learned import learned
from pytest_flagperf.results.verdicts.speedup import OneCard, speedup
from pytest_flagperf.results.verdicts.throughput import throughput
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict, failed, finished, in_range, is_regression, valid

__all__ = [
    "Kind",
    "OneCard",
    "Verdict",
    "converges",
    "failed",
    "has_converged",
    "is_regression",
    "speedup",
    "throughput",
    "valid",
]


def converges(outcome: Outcome | None) -> list[Verdict]:
    """It finished and learned on real data, and EVALUATE logged the target, in its time; or it kept to the curve."""
    found = finished(outcome)
    if outcome is None:
        return found
    if not outcome.ended_well:
        # What an unfinished round reached says nothing; a bad loss may be why it did not finish.
        return [*found, *(verdict for verdict in convergence.finite_loss(outcome) if outcome.losses.bad)]
    found += [in_range(outcome), *convergence.finite_loss(outcome), *convergence.real_data(outcome)]
    learnt = [learned(outcome)] if all(verdict.ok for verdict in found) else []
    if outcome.parity_samples is not None:
        return [*found, *learnt, likeness.parity(outcome)]
    early = likeness.not_too_early(outcome) if learnt else None
    return [*found, *learnt, *convergence.reached(outcome), *convergence.agrees(outcome), *([early] if early else [])]


def has_converged(outcome: Outcome) -> bool:
    """By the same verdicts that the tests give."""
    return outcome.meant_to_converge and not failed(converges(outcome))
