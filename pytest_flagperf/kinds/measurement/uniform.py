"""Find the ranks, hosts and devices that are slower than their like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low

from flagperf_driver.node.logs.points import MeasuredPoint, Turn
from pytest_flagperf.results.figures.units import compared, quantity
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.plan import MeasuredFigure

BOUND = 0.10
"""By which share a rank must be slower than the median of the others."""
FEWEST_TURNS = 4
SLOW, WAITS = "is slow", "waits for a core"
_AGREE = {SLOW: 0.75, WAITS: 0.9}
"""The share of the turns in which a rank must be slower by the bound; waiting comes and goes on a busy host."""
_SPREADS = 4.0
_CROWDED = 0.2
"""A host is crowded if half of its ranks wait for a core for a larger share of their time."""


@dataclass(frozen=True)
class Slow:
    """A rank that is slower than its like."""

    name: str
    share: float
    """How much longer an iteration takes than the median of the others."""
    reason: str
    """SLOW if the device itself is slow, WAITS if the rank has no core for a part of the time."""
    waited: float | None
    """The mean share of its time in which it had no core; None if unknown."""


def slow_ranks(turns: Mapping[str, Sequence[Turn]]) -> list[Slow] | None:
    """Return the slow ones of ranks that measured the same point together; None if too few turns to judge.

    A turn's times are compared with each other only: what slows all ranks of a turn names none of them. The time
    without waiting for a core is judged first, because on a busy host it shows the processor; a rank that is as fast
    as the others by this time can still wait for a core more than they do. Where most ranks wait, none is named for
    this: which of them other processes disturb most is chance.
    """
    wall = _shares(turns, lambda turn: turn.seconds)
    if not wall:
        return None
    # A device's own clock does not count what its host waits for.
    by_host = any(turn.own is not None for of_rank in turns.values() for turn in of_rank)
    judged = [(SLOW, _shares(turns, lambda turn: turn.own) if by_host else wall)]
    if by_host and median_low(_waited(of_rank) or 0.0 for of_rank in turns.values()) <= _CROWDED:
        judged.append((WAITS, wall))
    slow: dict[str, Slow] = {}
    for reason, shares in judged:
        for name, share in _above(shares, reason).items():
            slow.setdefault(name, Slow(name, share, reason, _waited(turns[name])))
    return [slow[name] for name in turns if name in slow]


def _shares(turns: Mapping[str, Sequence[Turn]], time_of: Callable[[Turn], float | None]) -> dict[str, list[float]]:
    """Return for each rank by which share it was slower than the median of the others, in each turn that all know.

    Nothing for a single rank, or with too few turns.
    """
    rows = [[time_of(turn) or math.nan for turn in of_ranks] for of_ranks in zip(*turns.values(), strict=False)]
    rows = [row for row in rows if all(time > 0 for time in row)]
    if len(turns) < 2 or len(rows) < FEWEST_TURNS:
        return {}
    return {
        name: [row[place] / median(row[:place] + row[place + 1 :]) - 1 for row in rows]
        for place, name in enumerate(turns)
    }


def _above(shares: Mapping[str, Sequence[float]], reason: str) -> dict[str, float]:
    """Return the ranks that are above the bound and the noise, and that often enough."""
    if not shares:
        return {}
    middle = {name: median(of_rank) for name, of_rank in shares.items()}
    # The noise of the quieter half, so that several slow ranks do not hide each other.
    quiet = sorted(middle, key=lambda name: abs(middle[name]))[: max(2, math.ceil(len(middle) / 2))]
    deviations = [abs(share - middle[name]) for name in quiet for share in shares[name]]
    spread = 1.4826 * median(deviations) / math.sqrt(len(shares[quiet[0]]))
    return {
        name: share
        for name, share in middle.items()
        if share >= max(BOUND, _SPREADS * spread) and fmean(turn >= BOUND for turn in shares[name]) >= _AGREE[reason]
    }


def _waited(turns: Sequence[Turn]) -> float | None:
    known = [turn.waited for turn in turns if turn.waited is not None]
    return fmean(known) if known else None


def slow_devices(outcome: Outcome, baseline: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the host of each device that is slower than the others, or than the accepted figures, and a sentence."""
    slow: dict[str, tuple[str, str]] = {}

    def host(rank: str) -> str:
        return outcome.hosts[int(rank) // outcome.nproc]

    for point in outcome.points:
        for one in slow_ranks(point.turns) or ():
            share = quantity(one.share, "share")
            waited = "" if one.waited is None else f", without a core for {quantity(one.waited, 'share')} of its time"
            sentence = f"rank {one.name} {one.reason}: {point.name} takes {share} longer than on the others{waited}"
            slow.setdefault(one.name, (host(one.name), sentence))
    for figure in outcome.figures:
        accepted, best = baseline.get(figure.name), point_of(figure, outcome.points)
        # Only a rate is a speed: a capacity is not.
        if accepted is None or best is None or figure.direction == "lower" or not figure.unit.endswith("/s"):
            continue
        for rank, value in _by_rank(figure, best).items():
            if value < accepted * (1 - BOUND):
                got, expected = compared(value, accepted, figure.unit)
                below = f"more than {quantity(BOUND, 'share')} below the accepted {expected}"
                slow.setdefault(rank, (host(rank), f"rank {rank}: {figure.name} is {got}, {below}"))
    return list(slow.values())


def _by_rank(figure: MeasuredFigure, point: MeasuredPoint) -> Mapping[str, float]:
    """Return a figure of each rank by its times; a point without them has the figure of its slowest rank."""
    times = {rank: fmean(turn.seconds for turn in turns) for rank, turns in point.turns.items()}
    slowest = max(times.values(), default=0.0)
    if not slowest:
        return {str(point.rank): point.figures[figure.name]}
    return {rank: point.figures[figure.name] * slowest / seconds for rank, seconds in times.items()}
