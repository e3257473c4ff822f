"""Verdicts on trainings: they converge, and their throughputs are valid."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict, finished, in_range

from . import convergence, reference_checks, restarts
from .learning import learned
from .throughput import throughput

__all__ = ["converges", "rounds_converge", "throughput"]


def rounds_converge(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Judge whether each of these rounds converges."""
    return [verdict for outcome in outcomes for verdict in converges(outcome)]


def converges(outcome: Outcome) -> list[Verdict]:
    """Judge whether a round finished, learned on real data, and reached the target in time or kept to the curve."""
    verdicts = finished(outcome)
    if not outcome.ended_well:
        # An unfinished round is not judged by its metric; but a bad loss may be why it did not finish.
        return [*verdicts, *(verdict for verdict in convergence.finite_loss(outcome) if outcome.losses.bad)]
    verdicts += [in_range(outcome), *convergence.finite_loss(outcome), *convergence.real_data(outcome)]
    verdicts += [*convergence.experts(outcome), *restarts.drill(outcome), *restarts.goodput(outcome)]
    learning = [learned(outcome)] if all(verdict.ok for verdict in verdicts) else []
    if outcome.parity_samples is not None:
        return [*verdicts, *learning, reference_checks.parity(outcome)]
    early = reference_checks.not_too_early(outcome) if learning else None
    verdicts += [*learning, *convergence.reached(outcome), *convergence.agrees(outcome)]
    return [*verdicts, early] if early else verdicts
