"""The parts of a training on the clock that the samples are on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_flagperf.results.ranklog import RankLog


@dataclass(frozen=True)
class Phase:
    """``name``: init, warm-up, train or evaluate; seconds since the epoch by the clock of the harness's machine."""

    name: str
    start: float
    end: float


def of_round(logs: Iterable[RankLog], clock_offset_s: float) -> tuple[Phase, ...]:
    """By the first rank's log, in order; evaluations lie within the training."""
    return ()
