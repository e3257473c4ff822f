"""How long a round of a case takes: by stored rounds of it, else as its config declares. Nothing is made up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flagperf.plan import Plan
from pytest_flagperf.results.earlier import Earlier
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import count, quantity

WEEK_S = 7 * 24 * 3600.0
"""A standard case converges within this time."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one round, what they are from, and whether a round may also end sooner."""

    seconds: float
    source: str
    at_most: bool = False


def duration(plan: Plan, earlier: Earlier) -> Iterator[str]:
    """The lines that --plan prints: the estimate, its source, and a warning above a week."""
    found = _stored(plan, earlier) or _declared(plan)
    if found is None:
        yield "no estimate: never measured, and no expected_time_s in its config"
        return
    about = "at most" if found.at_most else "about"
    text = f"{about} {quantity(found.seconds, 's')} a round"
    if plan.case.repeat > 1:
        text += f", {quantity(found.seconds * plan.case.repeat, 's')} for {count(plan.case.repeat, 'round')}"
    yield f"{text} ({found.source})"
    if found.seconds > WEEK_S:
        yield "MORE THAN A WEEK: a standard case must converge within a week"


def _stored(plan: Plan, earlier: Earlier) -> Estimate | None:
    """By the newest run with rounds of this work: whole trainings, else the time of a step and the step limit."""
    steps = most_steps(plan)
    for rounds in earlier.runs(str(plan.case).rpartition(":")[0]):
        like = [one for one in rounds if _is_like(plan, one)]
        whole = _values([one for one in like if _is_as_long(plan, one)], "e2e_time")
        if whole:
            return Estimate(statistics.median(whole), f"median of {count(len(whole), 'stored round')}")
        step_times = _values(like, "step_time_mean")
        if step_times and steps is not None:
            step_s = statistics.median(step_times)
            of = f"{count(steps, 'step')} at {quantity(step_s, 's')} in {count(len(step_times), 'stored round')}"
            return Estimate(steps * step_s, f"{of}, without evaluations", at_most=True)
    return None


def _is_like(plan: Plan, one: Outcome) -> bool:
    config = plan.config
    theirs = (one.vendor, one.scale, one.synthetic, one.parity_samples, one.work.batch_per_card, one.work.accumulation)
    return theirs == (
        plan.vendor, plan.scale, plan.synthetic, config["parity_samples"], config["train_batch_size"],
        config["gradient_accumulation_steps"],
    )  # fmt: skip


def _is_as_long(plan: Plan, one: Outcome) -> bool:
    """Whether the round was to end where the plan's would: not one of a few steps, as smoke tests are."""
    limits = {name: limit for name in ("max_steps", "max_samples", "max_epochs") if (limit := plan.config[name])}
    return one.throughput_only == plan.throughput_only and (plan.throughput_only or one.limits == limits)


def _values(rounds: Sequence[Outcome], name: str) -> list[float]:
    found = (one.value(name) for one in rounds)
    return [value for value in found if value is not None and math.isfinite(value)]


def most_steps(plan: Plan) -> int | None:
    """The optimizer steps after which a round ends at the latest; None where only epochs limit it."""
    config = plan.config
    if plan.throughput_only:
        return int(config["timing_warmup_steps"] + config["throughput_steps"])
    per_step = config["train_batch_size"] * config["gradient_accumulation_steps"] * plan.case.shape.cards
    limits = [config["max_steps"]]
    if config["samples_per_item"] == 1:
        limits += [math.ceil(config[name] / per_step) for name in ("max_samples", "parity_samples") if config[name]]
    return min((int(limit) for limit in limits if limit), default=None)


def _declared(plan: Plan) -> Estimate | None:
    value = plan.values["expected_time_s"]
    if plan.throughput_only or not isinstance(value.value, (int, float)):
        return None
    return Estimate(float(value.value), value.where)
