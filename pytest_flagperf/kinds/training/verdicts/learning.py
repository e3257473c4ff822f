"""The verdict ``learned``: compared with its start, the loss fell by more than noise and the metric improved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_flagperf.kinds.training.verdicts.reference import loss_points, metric_points
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.statistics import student_tail
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict

CHANCE = 0.01
"""Probability that the loss of a model that learns nothing seems to fall; the metric must improve as well."""
LEAST_WAY = 0.1
"""The metric must cover at least this share of the way from the untrained model to the target."""
NOISES = 3.0
"""The metric must change by at least this many times the noise of its evaluations, if the noise is known."""
FEWEST = 5
"""Minimum number of points of which the order is tested; with fewer any order may be chance."""
MANY = 20
"""Minimum number of points for means of the first and the last tenth instead of single points."""


@dataclass(frozen=True)
class Fall:
    """The change of a loss; ``chance`` is the probability that noise alone causes it, None with too few points."""

    before: float
    after: float
    points: int
    chance: float | None

    @property
    def ok(self) -> bool:
        return self.after < self.before and (self.chance is None or self.chance < CHANCE)


def learned(outcome: Outcome) -> Verdict:
    """Judge the loss and the metric in one verdict."""
    points = loss_points(outcome)
    checks = [_of_loss(outcome, points), *_of_metric(outcome)] if points else [(False, "no loss was logged")]
    ok = all(passed for passed, _ in checks)
    got = "; ".join(text for passed, text in checks if ok or not passed)
    expected = "learn by more than noise"
    sentence = "" if ok else f"round {outcome.round}: the model did not {expected}: {got}"
    return Verdict("learned", ok, got, expected, sentence)


def fall(points: curves.Points) -> Fall:
    """Compare the loss at the start and at the end: the first and last of few points, or the first and last tenth."""
    values = [value for _, value in points]
    if len(points) < MANY:
        return Fall(values[0], values[-1], len(points), _by_order(values) if len(points) >= FEWEST else None)
    ends = [points[-1][0] * number / 10 for number in range(1, 11)]
    before, *_, after = curves.means(points, ends)
    error = (noise.spread(values) or 0.0) * math.sqrt(2 * 10 / len(points))
    return Fall(before, after, len(points), _by_size(before - after, error, len(points)))


def _by_size(difference: float, error: float, points: int) -> float:
    """The probability that noise alone makes the means of two tenths differ by this much."""
    if not error:
        return 0.0 if difference > 0 else 1.0
    # Neighbouring differences share a point, so they count as half as many independent values.
    return student_tail(difference / error, points / 2) if difference > 0 else 1.0


def _by_order(values: Sequence[float]) -> float:
    """The probability that values in random order have as many falling pairs (Mann-Kendall test).

    Exact, by Mahonian numbers: the number of orders of n values with a given number of inversions.
    """
    rising = sum(later >= earlier for earlier, later in combinations(values, 2))
    ways = [1]
    for size in range(2, len(values) + 1):
        ways = [sum(ways[max(0, pairs - size + 1) : pairs + 1]) for pairs in range(len(ways) + size - 1)]
    return sum(ways[: rising + 1]) / math.factorial(len(values))


def _of_loss(outcome: Outcome, points: curves.Points) -> tuple[bool, str]:
    if outcome.starts and all(start.from_step != 0 for start in outcome.starts):
        return True, "the log of the first steps is missing here, with the host of an earlier start"
    change = fall(points)
    before, after = compared(change.before, change.after)
    verb = "fell" if change.after < change.before else "went"
    text = f"the loss {verb} from {before} to {after}" + (" (first and last tenth)" if change.points >= MANY else "")
    if change.after >= change.before:
        return False, text
    if change.chance is None:
        return change.ok, f"{text} ({count(change.points, 'point')}: too few to distinguish that from noise)"
    doubt = "" if change.ok else f"; noise alone does that in {quantity(change.chance, 'share')} of all trainings"
    return change.ok, f"{text}{doubt}"


def _of_metric(outcome: Outcome) -> list[tuple[bool, str]]:
    """Return nothing if the untrained model was not evaluated or the target is invalid."""
    target, name = outcome.target, outcome.target.name
    before = outcome.untrained.metrics.get(name, math.nan) if outcome.untrained else math.nan
    after = outcome.quality.last
    if target.value is None or after is None or not all(map(math.isfinite, (before, after, target.value))):
        return []
    start, end = compared(before, after, target.unit)
    if target.met(name, before):
        limit = quantity(target.value, target.unit)
        return [(False, f"the untrained model already reaches the target: {name} is {start}, the target {limit}")]
    if target.direction not in ("higher", "lower") or outcome.parity_samples is not None:
        # A parity training is short: its metric may not have moved yet, so only the loss is judged.
        return []
    way, least = (after - before) / (target.value - before) + 0.0, _least_way(outcome, before)  # + 0.0: never -0.0
    text = f"{name} went from {start}, untrained, to {end}"
    if way < least:
        got, expected = compared(way, least, "share")
        text += f", {got} of the way to the target, expected >= {expected}"
    return [(way >= least, text)]


def _least_way(outcome: Outcome, before: float) -> float:
    values = [value for _, value in metric_points(outcome)][1:]
    spread = noise.spread(values) if len(values) >= FEWEST else None
    assert outcome.target.value is not None
    return max(LEAST_WAY, NOISES * (spread or 0.0) / abs(outcome.target.value - before))
