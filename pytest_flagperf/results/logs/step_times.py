"""How long each rank's steps took, by its own log; of a long log as much as shows its course."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from flagperf_driver import events, perflog
from flagperf_driver.perflog import number
from pytest_flagperf.results.logs import partial_read
from pytest_flagperf.results.measured.outcome import Outcome

AT_MOST = 64 * 1024
"""Bytes of one log."""
_PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True)
class RankStepTimes:
    """``step_times``: step and seconds, in order; ``percentiles``: over all measured steps, as the rank said."""

    rank: int
    step_times: tuple[tuple[int, float], ...]
    percentiles: Mapping[str, float]


def read(round_dir: Path, outcome: Outcome, at_most: int = AT_MOST) -> list[RankStepTimes]:
    """Of every rank that left a log which can be read."""
    found = [_of_log(round_dir / log, at_most) for log in outcome.logs if (round_dir / log).is_file()]
    return sorted((words for words in found if words is not None), key=lambda words: words.rank)


def _of_log(path: Path, at_most: int) -> RankStepTimes | None:
    rank: int | None = None
    steps: list[tuple[int, float]] = []
    percentiles: dict[str, float] = {}
    for record in perflog.Reader(loads=orjson.loads).feed(b"".join(partial_read.read_lines(path, at_most))):
        rank = record.rank
        if record.event == events.STEP_END:
            step, seconds = number(record.value.get("step")), number(record.value.get("step_time"))
            if math.isfinite(step) and math.isfinite(seconds):
                steps.append((int(step), seconds))
        elif record.event == events.FINISHED:
            told = record.value.get("step_time")
            percentiles = {name: number(told.get(name)) for name in _PERCENTILES} if isinstance(told, dict) else {}
    return None if rank is None else RankStepTimes(rank, tuple(steps), percentiles)
