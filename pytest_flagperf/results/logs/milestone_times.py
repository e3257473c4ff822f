"""When the agents saw the ranks' milestones, from the file that each left: other clocks than the ranks' own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagperf_driver.node.agent.milestones import MILESTONES, Moment
from flagperf_driver.perflog import number
from pytest_flagperf.stored import files
from pytest_flagperf.stored.layout import MILESTONE_TIMES


@dataclass(frozen=True)
class MilestoneTimes:
    """One rank's milestones as its agent saw them: each lies between two moments."""

    started: Moment
    """Just before the process was started."""
    milestones: Mapping[str, tuple[Moment, Moment]]

    def seconds(self, begin: str | None, end: str) -> tuple[float, float] | None:
        """How long it was from one milestone to another at least and at most; None is the process's start."""
        first = (self.started, self.started) if begin is None else self.milestones.get(begin)
        last = self.milestones.get(end)
        return None if first is None or last is None else (last[0].s - first[1].s, last[1].s - first[0].s)

    @property
    def clock_set_s(self) -> float:
        """By how much the host's clock was set meanwhile, at most."""
        offsets = [moment.ms / 1000 - moment.s for moment in self._moments()]
        return max(offsets) - min(offsets)

    def _moments(self) -> Iterator[Moment]:
        yield self.started
        for both in self.milestones.values():
            yield from both


def read(folder: Path) -> dict[int, MilestoneTimes]:
    """By rank; nothing where the host's agent left no such file, as those of before did."""
    try:
        body = files.read_printable(folder / MILESTONE_TIMES)
    except files.FormatError:
        return {}
    ranks = body.get("ranks")
    found = {rank: _milestone_times(its) for rank, its in ranks.items()} if isinstance(ranks, dict) else {}
    return {int(rank): its for rank, its in found.items() if its is not None and rank.isdecimal()}


def _milestone_times(body: Any) -> MilestoneTimes | None:
    if not isinstance(body, dict) or (started := _moment(body.get("started"))) is None:
        return None
    milestones = {}
    for event in MILESTONES:
        both = body.get(event)
        if isinstance(both, dict):
            after, by = _moment(both.get("after")), _moment(both.get("by"))
            if after is not None and by is not None:
                milestones[event] = (after, by)
    return MilestoneTimes(started, milestones)


def _moment(pair: object) -> Moment | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    seconds, milliseconds = number(pair[0]), number(pair[1])
    return Moment(seconds, int(milliseconds)) if math.isfinite(seconds) and math.isfinite(milliseconds) else None
