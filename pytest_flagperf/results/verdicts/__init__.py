"""Verdicts on outcomes, as pure functions; a missing, invalid or unfinished figure is a failed verdict."""

from __future__ import annotations

from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.speedup import OneCard, speedup
from pytest_flagperf.results.verdicts.verdict import (
    Verdict,
    VerdictKind,
    failed,
    is_regression,
    valid,
)

__all__ = [
    "OneCard",
    "Verdict",
    "VerdictKind",
    "failed",
    "has_converged",
    "is_regression",
    "speedup",
    "valid",
]


def has_converged(outcome: Outcome) -> bool:
    """Return True if the round was meant to converge and all verdicts of ``test_converges`` passed."""
    criterion = kind_of(outcome).criterion("converges") if outcome.meant_to_converge else None
    return criterion is not None and not failed(criterion.verdicts_on([outcome]))
