"""Verdicts on outcomes, as pure functions; a missing, invalid or unfinished figure is a failed verdict."""

from __future__ import annotations

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import convergence, reference_checks
from pytest_flagperf.results.verdicts.learning import learned
from pytest_flagperf.results.verdicts.measurement import measured, reaches, uniform
from pytest_flagperf.results.verdicts.speedup import OneCard, speedup
from pytest_flagperf.results.verdicts.throughput import throughput
from pytest_flagperf.results.verdicts.verdict import (
    Verdict,
    VerdictKind,
    failed,
    finished,
    in_range,
    is_regression,
    valid,
)

__all__ = [
    "OneCard",
    "Verdict",
    "VerdictKind",
    "converges",
    "failed",
    "has_converged",
    "is_regression",
    "measured",
    "reaches",
    "speedup",
    "throughput",
    "uniform",
    "valid",
]


def converges(outcome: Outcome | None) -> list[Verdict]:
    """Judge whether a round finished, learned on real data, and reached the target in time or kept to the curve."""
    verdicts = finished(outcome)
    if outcome is None:
        return verdicts
    if not outcome.ended_well:
        # An unfinished round is not judged by its metric; but a bad loss may be why it did not finish.
        return [*verdicts, *(verdict for verdict in convergence.finite_loss(outcome) if outcome.losses.bad)]
    verdicts += [in_range(outcome), *convergence.finite_loss(outcome), *convergence.real_data(outcome)]
    verdicts += convergence.experts(outcome)
    learning = [learned(outcome)] if all(verdict.ok for verdict in verdicts) else []
    if outcome.parity_samples is not None:
        return [*verdicts, *learning, reference_checks.parity(outcome)]
    early = reference_checks.not_too_early(outcome) if learning else None
    verdicts += [*learning, *convergence.reached(outcome), *convergence.agrees(outcome)]
    return [*verdicts, early] if early else verdicts


def has_converged(outcome: Outcome) -> bool:
    """Return True if the round was meant to converge and all verdicts of ``converges`` passed."""
    return outcome.meant_to_converge and not failed(converges(outcome))
