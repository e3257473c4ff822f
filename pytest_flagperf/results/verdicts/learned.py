"""Did a training learn at all, by its own start: the loss fell by more than noise, the metric went to the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.statistics import student_tail
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import compared, count, quantity
from pytest_flagperf.results.verdicts.reference import loss_points, metric_points
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict

CHANCE = 0.01
"""How often the loss of a model that learns nothing may seem to fall; its metric has to move as well."""
LEAST_WAY = 0.1
"""The share of the way from the untrained model to the target that is no accident."""
NOISES = 3.0
"""So many times its evaluations' own noise the metric must have moved, where that noise is known."""
FEWEST = 5
"""With fewer points in order chance alone explains any order."""
MANY = 20
"""From so many points on the beginning and the end are means of several."""


@dataclass(frozen=True)
class Fall:
    """``chance``: how often noise alone makes a loss fall so; None where there are too few points to tell."""

    before: float
    after: float
    points: int
    chance: float | None

    @property
    def ok(self) -> bool:
        return self.after < self.before and (self.chance is None or self.chance < CHANCE)


def learned(outcome: Outcome) -> Verdict:
    """One verdict of both, the loss and the metric."""
    points = loss_points(outcome)
    found = [_of_loss(fall(points)), *_of_metric(outcome)] if points else [(False, "no loss was logged")]
    ok = all(well for well, _ in found)
    said = "; ".join(text for well, text in found if ok or not well)
    wanted = "a loss below and a metric beyond where they began, by more than noise"
    sentence = f"round {outcome.round}: it {'learned' if ok else 'did not learn'}: {said}"
    return Verdict(
        "learned", ok, said, wanted, sentence if ok else f"{sentence}; wanted {wanted}", kind=Kind.CONVERGENCE
    )


def fall(points: curves.Points) -> Fall:
    """The loss at the beginning and at the end: the first and last of few points, the first and last tenth of many."""
    values = [value for _, value in points]
    if len(points) < MANY:
        return Fall(values[0], values[-1], len(points), _by_order(values) if len(points) >= FEWEST else None)
    ends = _tenths(points)
    before, *_, after = curves.means(points, ends)
    error = (noise.spread(values) or 0.0) * math.sqrt(2 * 10 / len(points))
    return Fall(before, after, len(points), _by_size(before - after, error, len(points)))


def _tenths(points: curves.Points) -> list[float]:
    last = points[-1][0]
    return [last * number / 10 for number in range(1, 11)]


def _by_size(difference: float, error: float, points: int) -> float:
    """How often noise alone makes two means of a tenth each differ so."""
    if not error:
        return 0.0 if difference > 0 else 1.0
    # Neighbours share a point, so their differences know the noise half as well as so many values would.
    return student_tail(difference / error, points / 2) if difference > 0 else 1.0


def _by_order(values: Sequence[float]) -> float:
    """How often values in no order have as many pairs that fall (Mann and Kendall's test).

    Exact, by Mahonian numbers: ways to order n values with so many pairs against the order.
    """
    rising = sum(later >= earlier for earlier, later in combinations(values, 2))
    ways = [1]
    for size in range(2, len(values) + 1):
        ways = [sum(ways[max(0, pairs - size + 1) : pairs + 1]) for pairs in range(len(ways) + size - 1)]
    return sum(ways[: rising + 1]) / math.factorial(len(values))


def _of_loss(found: Fall) -> tuple[bool, str]:
    before, after = compared(found.before, found.after)
    way = "fell" if found.after < found.before else "went"
    said = f"the loss {way} from {before} to {after}" + (" (first and last tenth)" if found.points >= MANY else "")
    if found.chance is None:
        return found.ok, f"{said} ({count(found.points, 'point')}: too few to tell that from noise)"
    if found.ok:
        return True, said
    if found.after >= found.before:
        return False, said
    return False, f"{said}, which noise alone does in {quantity(found.chance, 'share')} of all trainings"


def _of_metric(outcome: Outcome) -> list[tuple[bool, str]]:
    """Nothing where the untrained model was not evaluated, or the target is none."""
    target, name = outcome.target, outcome.target.name
    before = outcome.untrained.metrics.get(name, math.nan) if outcome.untrained else math.nan
    after = outcome.quality.last
    if target.value is None or after is None or not all(map(math.isfinite, (before, after, target.value))):
        return []
    start, end = compared(before, after, target.unit)
    if target.reached_by(before):
        limit = quantity(target.value, target.unit)
        return [(False, f"the untrained model's {name} is {start} already, and the target {limit}")]
    if target.direction not in ("higher", "lower") or outcome.parity_samples is not None:
        # Of the beginning of a training the loss tells; a metric may wait long before it moves.
        return []
    way, least = (after - before) / (target.value - before), _least_way(outcome, before)
    said = f"{name} went from {start}, untrained, to {end}"
    if way < least:
        gone, needed = compared(way, least, "share")
        said += f", {gone} of the way to the target where {needed} is the least that is no accident"
    return [(way >= least, said)]


def _least_way(outcome: Outcome, before: float) -> float:
    values = [value for _, value in metric_points(outcome)][1:]
    known = noise.spread(values) if len(values) >= FEWEST else None
    assert outcome.target.value is not None
    return max(LEAST_WAY, NOISES * (known or 0.0) / abs(outcome.target.value - before))
