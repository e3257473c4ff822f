"""A suite's reference: how rounds that converged got there, by the samples of a step over all cards.

Made from stored rounds by ``flagperf reference``, kept beside the suite, and read by the verdicts out of the plan.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_flagperf.results.comparing.statistics import student_limit
from pytest_flagperf.results.logs import curves
from pytest_flagperf.results.logs.curves import Apart
from pytest_flagperf.results.logs.ranklog import Target
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored import FormatError, files

SCHEMA = 1
FEWEST = 5
"""A reference of fewer rounds would not know how much they differ."""
CHANCE = 0.005
"""How often an honest round may be called too early, or off the loss curve."""
FLOOR = 0.01
"""A loss curve may lie this far off, as a share of the loss, however much alike the reference's rounds are."""
EVALUATIONS = 2
"""An honest round is evaluated at least this many times before ``earliest``, so that a false evaluation shows."""
POINTS = 24
"""A curve has no more places: enough to see its shape by, and few enough to read in a diff."""
_DIGITS = 5


@dataclass(frozen=True)
class Curves:
    """One curve per round at common places; a round that ended early has fewer values."""

    samples: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]

    def band(self) -> list[tuple[float, float, float]]:
        """Samples, mean and standard deviation, as far as two rounds at least go."""
        found = []
        for number, samples in enumerate(self.samples):
            values = [values[number] for values in self.rounds if len(values) > number]
            if len(values) > 1:
                found.append((samples, statistics.fmean(values), statistics.stdev(values)))
        return found


@dataclass(frozen=True)
class Batch:
    """Rounds with the same number of samples in a step over all cards, and the same config but for the seed."""

    global_batch: int
    shapes: tuple[str, ...]
    seeds: tuple[int | None, ...]
    runs: tuple[str, ...]
    to_target: tuple[float, ...]
    """Where each round's metric crossed the target, on the line between two evaluations."""
    interval: float
    """Samples between those evaluations, the most of any round: the crossing is not known better."""
    metric: Curves
    loss: Curves
    """Means since the place before; as far as all rounds go."""

    @property
    def earliest(self) -> float:
        """Where an honest round is as seldom as CHANCE: the lower end of one more round's prediction interval.

        On the logarithm: samples to the target differ by factors, and never fall below 0.
        """
        logs = [math.log(samples) for samples in self.to_target]
        middle, rounds = statistics.fmean(logs), len(logs)
        unknown = self.interval / math.sqrt(12) / math.exp(middle)
        spread = math.hypot(statistics.stdev(logs), unknown) * math.sqrt(1 + 1 / rounds)
        return math.exp(middle - student_limit(CHANCE, rounds - 1) * spread)

    def tolerance(self, ends: Sequence[float]) -> Apart:
        """How far off a loss curve over these first places may lie, by how far the rounds lie from each other."""
        found = curves.among([values[: len(ends)] for values in self.loss.rounds], ends)
        # The area of honest rounds is what they deviate by and more: the same limit holds for both.
        limit = student_limit(CHANCE / 2, len(found) - 1)
        deviation = math.sqrt(statistics.fmean(one.deviation**2 for one in found))
        area = math.sqrt(statistics.fmean(one.area**2 for one in found))
        return Apart(max(FLOOR, limit * deviation), max(FLOOR, limit * area))


@dataclass(frozen=True)
class Reference:
    """Of one suite at one scale."""

    model: str
    framework: str
    scale: str
    sample_unit: str
    target: Target
    batches: tuple[Batch, ...]

    def batch(self, global_batch: int | None) -> Batch | None:
        return next((batch for batch in self.batches if batch.global_batch == global_batch), None)

    def earliest(self, global_batch: int) -> float | None:
        """The bound of these batches; None below the smallest batch that was measured.

        A larger batch never needs fewer samples, so a bound is no more than that of any larger batch, and holds
        above the largest one. Between two it lies on the line, as MLPerf's reference convergence points do.
        """
        sizes = [batch.global_batch for batch in self.batches]
        bounds = [min(batch.earliest for batch in self.batches[number:]) for number in range(len(sizes))]
        known = list(zip(map(float, sizes), bounds, strict=True))
        if not known or global_batch < sizes[0]:
            return None
        return bounds[-1] if global_batch >= sizes[-1] else curves.at(known, global_batch)

    def text(self) -> str:
        """JSON for people's diffs: a line for each list of numbers."""
        body = json.dumps(files.sayable({"schema": SCHEMA, "of": self}), indent=1, allow_nan=False)
        return re.sub(r"\[[^][{}]+\]", lambda found: " ".join(found[0].split()), body) + "\n"

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "reference") -> Reference:
        files.check_schema(body, SCHEMA, where)
        try:
            of = body["of"]
            named = {name: str(of[name]) for name in ("model", "framework", "scale", "sample_unit")}
            batches = sorted(map(_batch, of["batches"]), key=lambda batch: batch.global_batch)
            return cls(**named, target=Target(**of["target"]), batches=tuple(batches))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{where}: is not a reference: {type(error).__name__}: {error}") from error


def global_batch(outcome: Outcome) -> int | None:
    """Items of a step over all cards."""
    per_card = outcome.work.batch_per_card
    return per_card * outcome.work.accumulation * outcome.cards if per_card else None


def step_samples(outcome: Outcome) -> int:
    """The largest number of samples of a step over all cards."""
    return (global_batch(outcome) or 1) * max(outcome.work.samples_per_item, 1)


def metric_points(outcome: Outcome) -> list[tuple[float, float]]:
    """The metric over samples, the untrained model's first."""
    name = outcome.target.name
    untrained = [(0.0, outcome.untrained.metrics.get(name, math.nan))] if outcome.untrained else []
    return curves.finite(
        [*untrained, *((float(one.samples), one.metrics.get(name, math.nan)) for one in outcome.evaluations)]
    )


def loss_points(outcome: Outcome) -> list[tuple[float, float]]:
    return curves.finite((float(step.samples), step.loss) for step in outcome.steps)


def of_rounds(rounds: Sequence[tuple[str, Outcome]]) -> Batch:
    """The batch that like rounds make, each with the name of its run; all reached the target."""
    outcomes = [outcome for _, outcome in rounds]
    metrics = [metric_points(outcome) for outcome in outcomes]
    crossed = [curves.crossing(points, one.target) for points, one in zip(metrics, outcomes, strict=True)]
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
    """From the last evaluation but one to the last, which reached the target."""
    return max((end - start for (start, _), (end, _) in list(pairwise(points))[-1:]), default=0.0)


def _metrics(rounds: Sequence[curves.Points]) -> Curves:
    longest = max(rounds, key=lambda points: points[-1][0])
    places = curves.thinned([samples for samples, _ in longest], POINTS)
    values = [[curves.at(points, samples) for samples in places] for points in rounds]
    kept = tuple(tuple(_short(value) for value in each if value is not None) for each in values)
    return Curves(tuple(places), kept)


def _losses(rounds: Sequence[curves.Points]) -> Curves:
    shortest = min(rounds, key=lambda points: points[-1][0])
    places = curves.thinned([samples for samples, _ in shortest], POINTS)
    return Curves(tuple(places), tuple(tuple(map(_short, curves.means(points, places))) for points in rounds))


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _batch(body: Mapping[str, Any]) -> Batch:
    found = Batch(
        global_batch=int(body["global_batch"]),
        shapes=tuple(body["shapes"]),
        seeds=tuple(body["seeds"]),
        runs=tuple(body["runs"]),
        to_target=tuple(map(float, body["to_target"])),
        interval=float(body["interval"]),
        metric=_curves(body["metric"]),
        loss=_curves(body["loss"]),
    )
    if len(found.to_target) < FEWEST or min(found.to_target) <= 0:
        raise ValueError(f"global_batch {found.global_batch}: to_target wants {FEWEST} numbers above 0 or more")
    if len(found.loss.rounds) < 2 or any(len(values) != len(found.loss.samples) for values in found.loss.rounds):
        raise ValueError(f"global_batch {found.global_batch}: loss wants 2 rounds or more, each with a value a place")
    return found


def _curves(body: Mapping[str, Any]) -> Curves:
    return Curves(tuple(map(float, body["samples"])), tuple(tuple(map(float, values)) for values in body["rounds"]))
