"""The times at which the agents saw the ranks' milestones, by the agents' clocks: from milestones.json."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.layout import MILESTONE_TIMES
from flagperf_driver.node.agent.milestones import MILESTONES, Moment
from flagperf_driver.perflog import number
from pytest_flagperf.stored import files


@dataclass(frozen=True)
class MilestoneTimes:
    """The milestones of one rank as its agent saw them, each between two moments."""

    started: Moment
    """The moment before the process was started."""
    milestones: Mapping[str, tuple[Moment, Moment]]
    steps_s: tuple[float, float] | None = None
    """The least and the most seconds of the training before all records but those of evaluations; None if unknown."""
    evaluations_s: tuple[float, float] | None = None
    """The least and the most seconds before the records of evaluations."""
    off_s: float = math.nan
    """The largest difference between a record's own time and the time at which it was seen."""

    def seconds(self, begin: str | None, end: str) -> tuple[float, float] | None:
        """The least and the most seconds between two milestones; ``begin`` is None for the start of the process."""
        first = (self.started, self.started) if begin is None else self.milestones.get(begin)
        last = self.milestones.get(end)
        return None if first is None or last is None else (last[0].s - first[1].s, last[1].s - first[0].s)

    @property
    def clock_set_s(self) -> float:
        """The most seconds by which the host's clock was set meanwhile."""
        moments = [self.started, *itertools.chain(*self.milestones.values())]
        offsets = [moment.ms / 1000 - moment.s for moment in moments]
        return max(offsets) - min(offsets)


def read(folder: Path) -> tuple[dict[int, MilestoneTimes], str | None]:
    """Return the milestone times by rank, and the reason why the ranks were not confined.

    The times are empty without a valid file of the host's agent. The reason is None if the ranks were confined, or if
    an older agent did not say.
    """
    try:
        body = files.read_printable(folder / MILESTONE_TIMES, loads=files.fast_loads)
    except files.FormatError:
        return {}, None
    ranks, reason = body.get("ranks"), body.get("not_confined")
    times = {rank: _milestone_times(body) for rank, body in ranks.items()} if isinstance(ranks, dict) else {}
    known = {int(rank): found for rank, found in times.items() if found is not None and rank.isdecimal()}
    return known, None if reason is None else str(reason)


def _milestone_times(body: Any) -> MilestoneTimes | None:
    if not isinstance(body, dict) or (started := _moment(body.get("started"))) is None:
        return None
    milestones = {}
    for event in MILESTONES:
        moments = body.get(event)
        if isinstance(moments, dict):
            after, by = _moment(moments.get("after")), _moment(moments.get("by"))
            if after is not None and by is not None:
                milestones[event] = (after, by)
    steps, evaluations = _bounds(body.get("steps")), _bounds(body.get("evaluations"))
    return MilestoneTimes(started, milestones, steps, evaluations, number(body.get("off_s")))


def _bounds(pair: object) -> tuple[float, float] | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    least, most = number(pair[0]), number(pair[1])
    return (least, most) if 0 <= least <= most else None


def _moment(pair: object) -> Moment | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    seconds, milliseconds = number(pair[0]), number(pair[1])
    return Moment(seconds, int(milliseconds)) if math.isfinite(seconds) and math.isfinite(milliseconds) else None
