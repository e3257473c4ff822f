"""The step times of each rank, and its forward pass, from its log; of a long log only parts are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import orjson

from flagperf_driver import events, perflog
from flagperf_driver.node.logs import partial_read
from flagperf_driver.perflog import number
from pytest_flagperf.results.measured.outcome import Outcome

AT_MOST = 64 * 1024
"""Maximum number of bytes read of one log."""


@dataclass(frozen=True)
class RankStepTimes:
    """``step_times``: step and seconds, in order; ``forward``: the mean forward pass of the measured steps."""

    rank: int
    step_times: tuple[tuple[int, float], ...]
    forward: float = math.nan


def read(round_dir: Path, outcome: Outcome, at_most: int = AT_MOST) -> list[RankStepTimes]:
    """The step times of every rank whose log has records, in the order of ranks."""
    ranks = [_of_log(round_dir / log, at_most) for log in outcome.logs if (round_dir / log).is_file()]
    return sorted((times for times in ranks if times is not None), key=lambda times: times.rank)


def _of_log(path: Path, at_most: int) -> RankStepTimes | None:
    rank: int | None = None
    steps: list[tuple[int, float]] = []
    forward = math.nan
    for record in perflog.Reader(loads=orjson.loads).feed(b"".join(partial_read.read_lines(path, at_most))):
        rank = record.rank
        if record.event == events.STEP_END:
            step, seconds = number(record.value.get("step")), number(record.value.get("step_time"))
            if math.isfinite(step) and math.isfinite(seconds):
                steps.append((int(step), seconds))
        elif record.event == events.FINISHED:
            forward = number(record.value.get("forward_time"))
    return None if rank is None else RankStepTimes(rank, tuple(steps), forward)
