"""Sweeps: the variants of a case that --each runs, side by side, and which of them reaches the target first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_flagperf.case import Case, case_of
from pytest_flagperf.results.figures import noise, statistics
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.failures import ran_out_of_memory
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.verdicts.case_result import EXPECTED, PASSED, CaseResult, CaseSummary

TARGET, STEPS = "time_to_target", "steps_to_target"
COMPARED = {
    TARGET: "time to target", STEPS: "steps to target", "step_time_p50": "step time",
    "peak_memory": "memory of tensors", "device_memory": "memory of a device",
    "energy_to_target": "energy to target", "device_energy_per_sample": "energy per sample",
    "cost_to_target": "cost to target", "mfu": "MFU",
}  # fmt: skip
"""The figures that a sweep compares beside the main one of the suite, with their titles."""


@dataclass(frozen=True)
class SweptCase:
    """A variant of a case: the medians of its figures over the rounds that count, and its loss."""

    case: Case
    state: str
    figures: Mapping[str, MetricValue]
    goal: str
    """The figure that decides: the time to the target, of a case without one the main figure."""
    rounds: tuple[float, ...]
    """The values of this figure."""
    problem: str
    """Why the variant cannot be the best, in a few words."""
    loss: tuple[tuple[float, float], ...]
    """The samples and the loss at each logged step of the first round."""
    started_ms: int

    @property
    def label(self) -> str:
        """The values, with their keys if there are several."""
        pairs = self.case.variant
        return pairs[0][1] if len(pairs) == 1 else " ".join(f"{key}={value}" for key, value in pairs)

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key: numbers by their size, other values in the order in which they ran."""
        return *(_number(value) for _, value in self.case.variant), self.started_ms


@dataclass(frozen=True)
class Sweep:
    """The variants of a case with the same keys, in order."""

    cases: tuple[SweptCase, ...]

    @property
    def keys(self) -> str:
        return " and ".join(key for key, _ in self.cases[0].case.variant)

    @property
    def name(self) -> str:
        return f"{self.cases[0].case.without_variant} by {self.keys}"

    @property
    def ranked(self) -> list[SweptCase]:
        """The variants that can be the best, the best first."""
        goal = self.cases[0].goal
        named = [one for one in self.cases if not one.problem and one.goal == goal]
        higher = any(one.figures[goal].direction == "higher" for one in named)
        return sorted(named, key=lambda one: one.figures[goal].value, reverse=higher)

    @property
    def answer(self) -> str:
        """Which value is the best, how far the others are from it, and which have a problem."""
        ranked, goal = self.ranked, self.cases[0].goal
        to_target = goal == TARGET
        if ranked:
            best, *others = ranked
            figure = best.figures[goal]
            does = "reaches the target first, in" if to_target else f"has the best {goal},"
            parts = [f"{best.label} {does} {quantity(figure.value, figure.unit)}{_doubt(ranked)}"]
            least = figure.value or float("nan")
            ratios = [f"{one.label}: {quantity(one.figures[goal].value / least, 'x')}" for one in others]
            parts += [f"{', '.join(ratios)}{' as long' if to_target else ' of it'}"] if ratios else []
        else:
            parts = ["no value reached the target" if to_target else "no value was measured"]
        for problem in dict.fromkeys(one.problem for one in self.cases if one.problem):
            parts.append(f"{problem}: {', '.join(one.label for one in self.cases if one.problem == problem)}")
        return "; ".join(parts)


def swept_case(case: CaseResult, summary: CaseSummary) -> SweptCase | None:
    """Return a variant for the comparison with the others; None for a case without a variant."""
    parsed, first = case_of(case.case), case.first
    if parsed is None or not parsed.variant:
        return None
    goal = TARGET if case.meant else first.main
    figures = {name: metric for name in (*COMPARED, first.main) if (metric := _median(case, name)) is not None}
    return SweptCase(
        parsed,
        summary.state,
        figures,
        goal,
        tuple(statistics.finite(outcome.value(goal) for outcome in case.counted)),
        _problem(case, summary) or ("" if goal in figures else "not measured"),
        tuple((float(step.samples), step.loss) for step in first.steps),
        first.started_ms or 0,
    )


def sweeps(cases: Iterable[SweptCase | None]) -> list[Sweep]:
    """Return the sweeps of at least two variants."""
    groups: dict[tuple[object, ...], list[SweptCase]] = {}
    for one in cases:
        if one is not None:
            groups.setdefault((one.case.without_variant, *(key for key, _ in one.case.variant)), []).append(one)
    ordered = (sorted(group, key=lambda one: one.order) for group in groups.values() if len(group) > 1)
    return [Sweep(tuple(group)) for group in ordered]


def _median(case: CaseResult, name: str) -> MetricValue | None:
    metrics = [metric for outcome in case.counted if (metric := outcome.metric(name)) is not None]
    if name == STEPS:
        reached = [one.quality.reached for one in case.counted if one.quality.reached is not None]
        how = "the step of the first evaluation at the target"
        metrics = [MetricValue(STEPS, float(evaluation.step), "steps", "lower", how) for evaluation in reached]
    value = statistics.summarize(metric.value for metric in metrics).median
    return None if value is None else replace(metrics[0], value=value)


def _problem(case: CaseResult, summary: CaseSummary) -> str:
    if any(ran_out_of_memory(outcome.failures) for outcome in case.outcomes):
        return "out of memory"
    if case.finished and case.converged is not None and case.converged < case.meant:
        return "not converged"
    return "" if summary.state in (PASSED, EXPECTED) else summary.state


def _doubt(ranked: list[SweptCase]) -> str:
    """Say if noise may explain that the first is better than the second."""
    if len(ranked) < 2:
        return ""
    best, second, *_ = ranked
    judgement = noise.compare(second.rounds, best.rounds, direction=best.figures[best.goal].direction)
    if judgement.error is None:
        return " (one round each: noise unknown)"
    return "" if judgement.word == noise.BETTER else f" ({second.label} is as good within noise)"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
