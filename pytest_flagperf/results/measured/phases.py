"""The phases of a training or a measurement, on the same clock as the samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flagperf_driver import events
from flagperf_driver.node.logs.ranklog import RankLog
from flagperf_driver.perflog import number

INIT, WARM_UP, TRAIN, EVALUATE, MEASURE = "init", "warm-up", "train", "evaluate", "measure"

_BETWEEN = {TRAIN: "from the end of the warm-up to TRAIN_END", MEASURE: "from INIT_END to FINISHED"}


@dataclass(frozen=True)
class Phase:
    """A phase of a round in seconds since the epoch, by the clock of the machine with pytest."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def work(self) -> str:
        """What the round does meanwhile, in a word."""
        return "measurement" if self.name == MEASURE else "training"

    @property
    def between(self) -> str:
        """The records between which the phase lies, in words."""
        return _BETWEEN.get(self.name, "from TRAIN_START to TRAIN_END")


def of_round(logs: Iterable[RankLog], clock_offset_s: float) -> tuple[Phase, ...]:
    """Return the phases by the first rank's log, in order; evaluations lie within the training.

    A phase without an end record ends with the rank's last record.
    """
    logs = list(logs)
    log = next((log for log in logs if log.train_start_ms is not None), logs[0] if logs else None)
    if log is None:
        return ()
    phases = [
        Phase(name, start / 1000 - clock_offset_s, end / 1000 - clock_offset_s) for name, start, end in _spans(log)
    ]
    return tuple(phase for phase in phases if phase.end > phase.start)


def training(phases: Iterable[Phase]) -> Phase | None:
    """The time from TRAIN_START to TRAIN_END, evaluations included, or that of a measurement; None without either."""
    parts = [phase for phase in phases if phase.name in (WARM_UP, TRAIN, MEASURE)]
    if not parts:
        return None
    return Phase(MEASURE if parts[0].name == MEASURE else "training", parts[0].start, parts[-1].end)


def after_warm_up(phases: Iterable[Phase]) -> Phase | None:
    return next((phase for phase in phases if phase.name == TRAIN), None)


def _spans(log: RankLog) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end in milliseconds by the rank's own clock."""
    start, last = log.train_start_ms, log.last_ms or 0
    begin = _process_start(log)
    measures = log.milestones_ms.get(events.INIT_END) if log.points or log.left_out else None
    if begin is not None and measures is not None:
        yield INIT, begin, measures
        yield MEASURE, measures, log.milestones_ms.get(events.FINISHED, last)
        return
    if begin is not None:
        yield INIT, begin, last if start is None else start
    if start is None:
        return
    end = log.train_end_ms if log.train_end_ms is not None else last
    warm = end if log.warm_ms is None else min(max(log.warm_ms, start), end)
    yield WARM_UP, start, warm
    yield TRAIN, warm, end
    for evaluation in log.evaluations:
        end_s, seconds = evaluation.time, evaluation.seconds
        if math.isfinite(end_s) and math.isfinite(seconds):
            yield EVALUATE, start + (end_s - seconds) * 1000, start + end_s * 1000


def _process_start(log: RankLog) -> float | None:
    """The start of the process from init_time of FINISHED; without it the time of INIT_START."""
    seconds = number((log.finished or {}).get("init_time"))
    if log.train_start_ms is not None and math.isfinite(seconds):
        return log.train_start_ms - seconds * 1000
    return log.init_start_ms
