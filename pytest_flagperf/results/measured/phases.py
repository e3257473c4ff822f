"""The parts of a training on the clock that the samples are on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flagperf_driver.perflog import number
from pytest_flagperf.results.logs.ranklog import RankLog

INIT, WARM_UP, TRAIN, EVALUATE = "init", "warm-up", "train", "evaluate"


@dataclass(frozen=True)
class Phase:
    """``name``: init, warm-up, train or evaluate; seconds since the epoch by the clock of the harness's machine."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def of_round(logs: Iterable[RankLog], clock_offset_s: float) -> tuple[Phase, ...]:
    """By the first rank's log, in order; evaluations lie within the training.

    A part that broke off ends where the rank was last heard of.
    """
    logs = list(logs)
    log = next((log for log in logs if log.train_start_ms is not None), logs[0] if logs else None)
    if log is None:
        return ()
    found = [
        Phase(name, start / 1000 - clock_offset_s, end / 1000 - clock_offset_s) for name, start, end in _spans(log)
    ]
    return tuple(phase for phase in found if phase.end > phase.start)


def training(phases: Iterable[Phase]) -> Phase | None:
    """From TRAIN_START to TRAIN_END, evaluations included; None where nothing was trained."""
    found = [phase for phase in phases if phase.name in (WARM_UP, TRAIN)]
    return Phase("training", found[0].start, found[-1].end) if found else None


def _spans(log: RankLog) -> Iterator[tuple[str, float, float]]:
    """Names, and milliseconds by the rank's own clock."""
    start, last = log.train_start_ms, log.last_ms or 0
    begin = _process_start(log)
    if begin is not None:
        yield INIT, begin, last if start is None else start
    if start is None:
        return
    end = log.train_end_ms if log.train_end_ms is not None else last
    warm = end if log.warm_ms is None else min(max(log.warm_ms, start), end)
    yield WARM_UP, start, warm
    yield TRAIN, warm, end
    for one in log.evaluations:
        if math.isfinite(one.time) and math.isfinite(one.seconds):
            yield EVALUATE, start + (one.time - one.seconds) * 1000, start + one.time * 1000


def _process_start(log: RankLog) -> float | None:
    """Of the process, where FINISHED tells how long before the training that was; else of its first words."""
    seconds = number((log.finished or {}).get("init_time"))
    if log.train_start_ms is not None and math.isfinite(seconds):
        return log.train_start_ms - seconds * 1000
    return log.init_start_ms
