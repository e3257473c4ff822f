"""Choose targets from trainings of full length: each target keeps a margin below what other seeds reach.

"Below" and "low" are meant for a metric of which higher is better; for others all is mirrored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flagperf_driver.node.logs.ranklog import Evaluation
from flagperf_driver.target import Target
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.outcome import MetricQuality, Outcome

DEVIATIONS = 3
"""A target is at least this many standard deviations below the mean of the seeds."""
LEAST_MARGIN = 0.02
"""A target is at least this share of the way from the untrained model to the mean below the mean."""
LEAST_WAY = 0.7
"""A target is at least this share of that way above the untrained model: an easier target would prove little."""
LATEST = 0.8
"""Each training reaches the target within this share of its steps."""
_DECIMALS = 4


@dataclass(frozen=True)
class FullTraining:
    """A training of full length: what it reached at its end, and at which step it had reached the target."""

    seed: int
    at_end: tuple[float, ...]
    """The metrics with a target, in the order of the target."""
    step: int


@dataclass(frozen=True)
class TargetRange:
    """The possible targets of one metric, from the easiest to the hardest, with the reason of each end."""

    easiest: float
    hardest: float
    why_easiest: str
    why_hardest: str

    direction: str

    @property
    def easiest_text(self) -> str:
        easiest = _text(self.easiest) if math.isfinite(self.easiest) else "any value"
        return f"{easiest} ({self.why_easiest})"

    @property
    def hardest_text(self) -> str:
        return f"{_text(self.hardest)} ({self.why_hardest})"

    def contains(self, value: float) -> bool:
        low, high = (self.easiest, self.hardest) if self.direction == "higher" else (self.hardest, self.easiest)
        return low <= value <= high


def full_training(outcome: Outcome, target: Target) -> FullTraining:
    last, reached = outcome.evaluations[-1].metrics, reached_in(outcome, target)
    at_end = tuple(round(last[name], _DECIMALS) for name in target.values)
    return FullTraining(outcome.seed or 0, at_end, reached.step if reached else 0)


def reached_in(outcome: Outcome, target: Target) -> Evaluation | None:
    """Return the first evaluation that reached a target, which need not be the target that the round had."""
    return next((one for one in outcome.evaluations if target.reached_by(one.metrics)), None)


def ended_at(outcome: Outcome, target: Target) -> Outcome:
    """Return the round as if it had stopped at this target; unchanged but for the target if it did not reach it."""
    reached = reached_in(outcome, target)
    evaluations = tuple(one for one in outcome.evaluations if reached is None or one.samples <= reached.samples)
    bests = {name: _best([one.metrics.get(name, math.nan) for one in evaluations], target) for name in target.values}
    last = evaluations[-1].metrics if evaluations else {}
    of_names = {name: MetricQuality(bests[name], last.get(name)) for name in target.values}
    own = of_names[target.name]
    quality = replace(
        outcome.quality,
        evaluations=len(evaluations),
        best=own.best,
        last=own.last,
        also={name: quality for name, quality in of_names.items() if name != target.name},
        reached=reached,
        program_converged=reached is not None,
        program_final=None,
    )
    steps = tuple(one for one in outcome.steps if reached is None or one.samples <= reached.samples)
    return replace(outcome, target=target, evaluations=evaluations, steps=steps, quality=quality)


def _best(values: Iterable[float], target: Target) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return (min if target.direction == "lower" else max)(finite, default=None)


# -- the choice of a target --------------------------------------------------------------------------------------


def target_range(
    name: str, direction: str, shapes: Mapping[str, Sequence[Outcome]], *, further: bool = False
) -> TargetRange:
    """Return the possible targets of a metric, by the trainings of each shape; the hardest may be below the easiest.

    A ``further`` target may also guard what a training must not lose, such as the codes in use: if the metric falls
    during the training, every target that keeps the margin is possible.
    """
    sign = -1 if direction == "lower" else 1
    hardest: list[tuple[float, str]] = []
    easiest: list[tuple[float, str]] = []
    for shape, outcomes in shapes.items():
        ends = [sign * round(one.evaluations[-1].metrics[name], _DECIMALS) for one in outcomes]
        mean, deviation = statistics.fmean(ends), statistics.stdev(ends)
        untrained = sign * statistics.fmean(one.untrained.metrics[name] for one in outcomes if one.untrained)
        way = mean - untrained
        margin = max(DEVIATIONS * deviation, LEAST_MARGIN * abs(way))
        numbers = f"mean {_text(sign * mean)}, deviation {_text(deviation)}"
        hardest.append((mean - margin, f"{shape}: {numbers}"))
        least = -math.inf if further and way < 0 else untrained + LEAST_WAY * way
        easiest.append((least, f"{shape}: untrained {_text(sign * untrained)}, {numbers}"))
        for one in outcomes:
            in_time = max((sign * value for value in _until(one, name, LATEST)), default=-math.inf)
            hardest.append((in_time, f"{shape}: reached by seed {one.seed} in {LATEST:.0%} of its steps"))
    hard, easy = min(hardest), max(easiest)
    return TargetRange(sign * easy[0], sign * hard[0], easy[1], hard[1], direction)


def _until(outcome: Outcome, name: str, share: float) -> Iterator[float]:
    last = outcome.evaluations[-1].step
    for one in outcome.evaluations:
        value = one.metrics.get(name, math.nan)
        if one.step <= share * last and math.isfinite(value):
            yield value


def choose(current: float, possible: TargetRange) -> float | None:
    """Return the current target if it is possible, else the hardest one, rounded; None if no target is possible.

    A target that is possible is kept, so that earlier rounds stay comparable.
    """
    if possible.contains(current):
        return current
    for digits in range(2, 7):
        value = _rounded(possible.hardest, digits, up=possible.direction == "lower")
        if possible.contains(value):
            return value
    return None


def _rounded(value: float, digits: int, *, up: bool) -> float:
    """Round to significant digits, towards the easier side."""
    if value == 0 or not math.isfinite(value):
        return value
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**decimals
    nearest = round(scaled)
    whole = nearest if math.isclose(scaled, nearest, rel_tol=1e-12) else math.ceil(scaled) if up else math.floor(scaled)
    return round(whole / 10.0**decimals, max(decimals, 0))


def _text(value: float) -> str:
    return f"{value:.{_DECIMALS}f}"


# -- the table ---------------------------------------------------------------------------------------------------


def table(target: Target, steps: int, shapes: Mapping[str, Sequence[FullTraining]]) -> str:
    """Return the section of the suite's README: a row for each seed, the margin and the target."""
    names = [*target.values]
    head, seeds = ["seed"], sorted({one.seed for trainings in shapes.values() for one in trainings})
    rows = {seed: [str(seed)] for seed in seeds}
    means, limits = ["mean, deviation"], [f"mean {'+' if target.direction == 'lower' else '-'} {DEVIATIONS} deviations"]
    for shape, trainings in shapes.items():
        head += [*(f"{shape}: {name} at the end" for name in names), f"{shape}: target at step"]
        by_seed = {one.seed: one for one in trainings}
        for seed, cells in rows.items():
            one = by_seed.get(seed)
            cells += [*map(_text, one.at_end), f"{one.step}"] if one else [""] * (len(names) + 1)
        for number in range(len(names)):
            values = [one.at_end[number] for one in trainings]
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            away = DEVIATIONS * deviation * (1 if target.direction == "lower" else -1)
            means.append(f"{_text(mean)}, {_text(deviation)}")
            limits.append(_text(mean + away))
        means.append("")
        limits.append("")
    last = max(one.step for trainings in shapes.values() for one in trainings)
    targets = " and ".join(
        f"{name} {target.sign} {quantity(value, target.unit)}" for name, value in target.values.items()
    )
    lines = [head, ["---"] * len(head), *rows.values(), means, limits]
    return "\n".join([
        f"Trainings that did not stop at the target, but after {steps:,} steps:",
        "",
        *(" ".join(f"| {' | '.join(cells)} |".split()) for cells in lines),
        "",
        f"**The target is {targets}.** Every training had reached it by step {last:,}.",
    ])  # fmt: skip
