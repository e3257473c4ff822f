"""A suite's reference: the metric and loss curves of rounds that converged, by their batch over all cards.

``tools.calibrate`` makes it from stored rounds, ``tools.reference_points`` from published ones, which have no curves.
The file lies in the suite's folder; verdicts read it from the plan.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from flagperf_driver.target import Target
from pytest_flagperf.results.figures import targets
from pytest_flagperf.results.figures.statistics import student_limit
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.logs.curves import CurveDistance
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored import FormatError, files, type_check

SCHEMA = 1
FEWEST = 5
"""Minimum number of seeds of a target, and of rounds of a batch: their bounds are computed from the spread."""
CHANCE = 0.005
"""Probability that an honest round is judged too early, or off the loss curve."""
FLOOR = 0.01
"""Minimum tolerance of a loss curve, as a share of the loss, even if the reference's rounds hardly differ."""
EVALUATIONS = 2
"""Minimum number of evaluations before ``earliest``, so that a false evaluation can be detected."""
POINTS = 24
"""Maximum number of points of a stored curve, so that a diff stays readable."""
_DIGITS = 5


@dataclass(frozen=True)
class Curves:
    """One curve per round at common numbers of samples; a round that ended early has fewer values."""

    samples: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Batch:
    """Rounds with the same number of samples in a step over all cards, and the same config except the seed."""

    global_batch: int
    shapes: tuple[str, ...]
    seeds: tuple[int | None, ...]
    runs: tuple[str, ...]
    to_target: tuple[float, ...]
    """The samples at which each round had crossed all targets, interpolated between two evaluations."""
    interval: float
    """The largest number of samples between these two evaluations: the uncertainty of the crossing."""
    metric: Curves
    loss: Curves
    """Mean losses since the point before, as far as all rounds have values; no rounds in published points."""

    @property
    def earliest(self) -> float:
        """The lower end of the prediction interval of another round, which it undercuts with probability CHANCE.

        Computed with logarithms: samples to the target differ by factors and are above 0.
        """
        logs = [math.log(samples) for samples in self.to_target]
        middle, rounds = statistics.fmean(logs), len(logs)
        unknown = self.interval / math.sqrt(12) / math.exp(middle)
        spread = math.hypot(statistics.stdev(logs), unknown) * math.sqrt(1 + 1 / rounds)
        return math.exp(middle - student_limit(CHANCE, rounds - 1) * spread)

    def tolerance(self, ends: Sequence[float]) -> CurveDistance:
        """The allowed distance of a loss curve over these first points, from the distances between the rounds."""
        distances = curves.distances_among([values[: len(ends)] for values in self.loss.rounds], ends)
        # The area is at least the deviation, so the same limit serves for both.
        limit = student_limit(CHANCE / 2, len(distances) - 1)
        deviation = math.sqrt(statistics.fmean(distance.deviation**2 for distance in distances))
        area = math.sqrt(statistics.fmean(distance.area**2 for distance in distances))
        return CurveDistance(max(FLOOR, limit * deviation), max(FLOOR, limit * area))


@dataclass(frozen=True)
class Reference:
    """The reference of one suite at one scale."""

    model: str
    framework: str
    scale: str
    sample_unit: str
    target: Target
    batches: tuple[Batch, ...]

    def batch(self, global_batch: int | None) -> Batch | None:
        return next((batch for batch in self.batches if batch.global_batch == global_batch), None)

    def earliest(self, global_batch: int) -> float | None:
        """The bound for this batch; None below the smallest measured batch.

        A larger batch never needs fewer samples, so the bound is at most that of any larger batch, and the bound of
        the largest one holds above it. Between two batches it is interpolated, as in MLPerf's reference convergence
        points.
        """
        sizes = [batch.global_batch for batch in self.batches]
        bounds = [min(batch.earliest for batch in self.batches[number:]) for number in range(len(sizes))]
        known = list(zip(map(float, sizes), bounds, strict=True))
        if not known or global_batch < sizes[0]:
            return None
        return bounds[-1] if global_batch >= sizes[-1] else curves.at(known, global_batch)

    def text(self) -> str:
        """The reference as JSON with one line for each list of numbers, for readable diffs."""
        of = {**files.to_json_types(self), "target": targets.to_json(self.target)}
        body = json.dumps({"schema": SCHEMA, "of": of}, indent=1, allow_nan=False)
        return re.sub(r"\[[^][{}]+\]", lambda match: " ".join(match[0].split()), body) + "\n"

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "reference") -> Reference:
        files.check_schema(body, SCHEMA, where)
        reference = type_check.typed(cls, body.get("of"), where)
        for batch in reference.batches:
            problem = _problem(batch)
            if problem:
                raise FormatError(f"{where}: global_batch {batch.global_batch}: {problem}")
        return replace(reference, batches=tuple(sorted(reference.batches, key=lambda batch: batch.global_batch)))


def global_batch(outcome: Outcome) -> int | None:
    """The items of a step over all cards."""
    per_card = outcome.work.batch_per_card
    data_ranks = outcome.work.data_ranks or outcome.cards
    return per_card * outcome.work.accumulation * data_ranks if per_card else None


def step_samples(outcome: Outcome) -> int:
    """The largest number of samples of a step over all cards."""
    return (global_batch(outcome) or 1) * max(outcome.work.samples_per_item, 1)


def metric_points(outcome: Outcome) -> list[tuple[float, float]]:
    """The metric by samples, beginning with the untrained model."""
    name = outcome.target.name
    untrained = [(0.0, outcome.untrained.metrics.get(name, math.nan))] if outcome.untrained else []
    return curves.finite(
        [*untrained, *((float(one.samples), one.metrics.get(name, math.nan)) for one in outcome.evaluations)]
    )


def _evaluations(outcome: Outcome) -> list[tuple[float, Mapping[str, float]]]:
    """Samples and metrics of evaluations in which all metrics with a target are finite, the untrained model first."""
    untrained = [(0.0, outcome.untrained.metrics)] if outcome.untrained else []
    evaluations = [*untrained, *((float(one.samples), one.metrics) for one in outcome.evaluations)]
    names = [*outcome.target.values]
    return [one for one in evaluations if all(math.isfinite(one[1].get(name, math.nan)) for name in names)]


def loss_points(outcome: Outcome) -> list[tuple[float, float]]:
    return curves.finite((float(step.samples), step.loss) for step in outcome.steps)


def of_rounds(rounds: Sequence[tuple[str, Outcome]]) -> Batch:
    """Combine comparable rounds, each with the name of its run, into a batch; all must have reached the target."""
    outcomes = [outcome for _, outcome in rounds]
    metrics = [metric_points(outcome) for outcome in outcomes]
    crossed = [curves.crossing(_evaluations(outcome), outcome.target) for outcome in outcomes]
    return Batch(
        global_batch=global_batch(outcomes[0]) or 0,
        shapes=tuple(sorted({f"{one.nnodes}x{one.nproc}" for one in outcomes})),
        seeds=tuple(outcome.seed for outcome in outcomes),
        runs=tuple(sorted({name for name, _ in rounds})),
        to_target=tuple(float(round(samples)) for samples in crossed if samples is not None),
        interval=max(_interval(points) for points in metrics),
        metric=_metrics(metrics),
        loss=_losses([loss_points(outcome) for outcome in outcomes]),
    )


def _interval(points: curves.Points) -> float:
    """The samples between the last two evaluations, of which the last one reached the target."""
    return max((end - start for (start, _), (end, _) in list(pairwise(points))[-1:]), default=0.0)


def _metrics(rounds: Sequence[curves.Points]) -> Curves:
    longest = max(rounds, key=lambda points: points[-1][0])
    places = curves.thinned([samples for samples, _ in longest], POINTS)
    values = [[curves.at(points, samples) for samples in places] for points in rounds]
    kept = tuple(tuple(_short(value) for value in curve if value is not None) for curve in values)
    return Curves(tuple(places), kept)


def _losses(rounds: Sequence[curves.Points]) -> Curves:
    shortest = min(rounds, key=lambda points: points[-1][0])
    places = curves.thinned([samples for samples, _ in shortest], POINTS)
    return Curves(tuple(places), tuple(tuple(map(_short, curves.means(points, places))) for points in rounds))


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _problem(batch: Batch) -> str:
    if len(batch.to_target) < FEWEST or not min(batch.to_target) > 0:
        return f"to_target must have at least {FEWEST} numbers above 0"
    loss = batch.loss
    if len(loss.rounds) == 1 or any(len(values) != len(loss.samples) for values in loss.rounds):
        return "loss must have no round, or at least 2, each with as many values as samples"
    return ""
