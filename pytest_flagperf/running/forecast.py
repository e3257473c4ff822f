"""What is known of a case before it runs: whether it converges, and how long a round takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_flagperf.config.layers import PER_STEP
from pytest_flagperf.plan import Plan
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.published import Published, load
from pytest_flagperf.results.units import count, quantity
from pytest_flagperf.results.verdicts import has_converged
from pytest_flagperf.stored import FormatError

UTILIZATION = 0.3
"""The share of the declared peak at which a training is assumed to run where no run measured its throughput."""
WEEK_S = 7 * 24 * 3600.0
"""A standard case converges within this time."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one round, what they rest on, and whether a round may also end sooner."""

    seconds: float
    source: str
    at_most: bool = False


# -- whether it converges ----------------------------------------------------------------------------------------


def convergence(plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> str:
    """Return what is known of a case's convergence, for its plan: from stored runs and published results."""
    if plan.synthetic or plan.config["parity_samples"] is not None:
        return ""
    if plan.throughput_only:
        return f"not required; --no-throughput-only trains to the target, {training_time(plan, stored_runs)}"
    where = next(_converged(plan, stored_runs, results), "")
    return (
        f"verified in {where}" if where else "not verified: no stored or published run of this case reached its target"
    )


def training_time(plan: Plan, stored_runs: StoredRuns) -> str:
    """Return an estimate of the longest training that the config allows, and what it rests on."""
    samples, (rate, source) = most_samples(plan), _throughput(plan, stored_runs)
    if samples is None or rate is None:
        missing = "limit of the samples" if samples is None else "stored throughput and no declared peak"
        return f"duration unknown: no {missing}"
    seconds = quantity(samples / rate, "s")
    unit = plan.sample_unit
    return f"estimated {seconds} for at most {quantity(samples, unit)} ({quantity(rate, f'{unit}/s', 3)} {source})"


def _converged(plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> Iterator[str]:
    """Yield the names of runs and published files in which the case reached its target."""
    for rounds in stored_runs.of_case(plan.case.without_repeat):
        if any(_is_same_case(plan, one) and has_converged(one) for one in rounds):
            yield "a stored run"
    for result in results:
        if result.converged and result.name == plan.case.without_repeat and _is_same_case(plan, result.first):
            yield f"{result.file.parent.name}/{result.file.name}"


def published(folders: Iterable[Path]) -> Iterator[Published]:
    """Yield the results of folders; damaged ones verify nothing, and ``flagperf readme`` reports them."""
    for folder in folders:
        with suppress(FormatError):
            yield from load(folder)


def _is_same_case(plan: Plan, outcome: Outcome) -> bool:
    return (outcome.vendor, outcome.scale, outcome.synthetic) == (plan.vendor, plan.scale, plan.synthetic)


# -- how long a round takes --------------------------------------------------------------------------------------


def duration(plan: Plan, stored_runs: StoredRuns) -> Iterator[str]:
    """The lines that --plan prints: the estimate, its source, and a warning above a week."""
    found = _stored(plan, stored_runs) or _declared(plan) or _by_throughput(plan, stored_runs)
    if found is None:
        yield "no estimate: never measured, and neither expected_time_s nor the chip's peak is declared"
        return
    about = "at most" if found.at_most else "about"
    text = f"{about} {quantity(found.seconds, 's')} a round"
    if plan.case.repeat > 1:
        text += f", {quantity(found.seconds * plan.case.repeat, 's')} for {count(plan.case.repeat, 'round')}"
    yield f"{text} ({found.source})"
    if found.seconds > WEEK_S:
        yield "MORE THAN A WEEK: a standard case must converge within a week"


def _stored(plan: Plan, stored_runs: StoredRuns) -> Estimate | None:
    """By the newest run with rounds of this work: whole trainings, else the time of a step and the step limit."""
    steps = most_steps(plan)
    for rounds in stored_runs.of_case(plan.case.without_repeat):
        like = [one for one in rounds if _is_same_work(plan, one)]
        whole = _values([one for one in like if _is_as_long(plan, one)], "e2e_time")
        if whole:
            return Estimate(median(whole), f"median of {count(len(whole), 'stored round')}")
        step_times = _values(like, "step_time_mean")
        if step_times and steps is not None:
            step_s = median(step_times)
            of = f"{count(steps, 'step')} at {quantity(step_s, 's')} in {count(len(step_times), 'stored round')}"
            return Estimate(steps * step_s, f"{of}, without evaluations", at_most=True)
    return None


def _is_same_work(plan: Plan, one: Outcome) -> bool:
    config = plan.config
    theirs = (one.parity_samples, one.work.batch_per_card, one.work.accumulation)
    ours = (config["parity_samples"], config["train_batch_size"], config["gradient_accumulation_steps"])
    return _is_same_case(plan, one) and theirs == ours


def _is_as_long(plan: Plan, one: Outcome) -> bool:
    """Whether the round was to end where the plan's would: not one of a few steps, as smoke tests are."""
    limits = {name: limit for name in ("max_steps", "max_samples", "max_epochs") if (limit := plan.config[name])}
    return one.throughput_only == plan.throughput_only and (plan.throughput_only or one.limits == limits)


def _values(rounds: Sequence[Outcome], name: str) -> list[float]:
    found = (one.value(name) for one in rounds)
    return [value for value in found if value is not None and math.isfinite(value)]


def _declared(plan: Plan) -> Estimate | None:
    value = plan.values["expected_time_s"]
    if plan.throughput_only or not isinstance(value.value, (int, float)):
        return None
    return Estimate(float(value.value), value.where)


def _by_throughput(plan: Plan, stored_runs: StoredRuns) -> Estimate | None:
    """By the samples of the longest round, and a throughput of other work of the case or of the chips' peak."""
    samples, (rate, how), steps = most_samples(plan), _throughput(plan, stored_runs), most_steps(plan)
    if plan.throughput_only and steps is not None:
        samples = float(steps * _samples_per_step(plan))
    if plan.config["parity_samples"] or samples is None or rate is None:
        return None
    source = f"{quantity(samples, plan.sample_unit)}, {quantity(rate, f'{plan.sample_unit}/s', 3)} {how}"
    return Estimate(samples / rate, source, at_most=not plan.throughput_only)


def _throughput(plan: Plan, stored_runs: StoredRuns) -> tuple[float | None, str]:
    """The throughput of the newest stored run of the case, else from the declared peak; and which it is."""
    for rounds in stored_runs.of_case(plan.case.without_repeat):
        rates = [rate for one in rounds if (rate := one.value("p_core")) and one.vendor == plan.vendor]
        rates = rates if all(one.scale == plan.scale for one in rounds) else []
        if rates:
            return median(rates), "measured"
    return _assumed_throughput(plan), f"at an assumed {UTILIZATION * 100:g} % of the peak"


def _assumed_throughput(plan: Plan) -> float | None:
    if not plan.flops_per_sample or not plan.peak_tflops:
        return None
    return UTILIZATION * plan.case.shape.cards * plan.peak_tflops * 1e12 / plan.flops_per_sample


# -- limits of a training ----------------------------------------------------------------------------------------


def most_steps(plan: Plan) -> int | None:
    """The optimizer steps after which a round ends at the latest; None where only epochs limit it."""
    config = plan.config
    if plan.throughput_only:
        return int(config["timing_warmup_steps"] + config["throughput_steps"])
    limits = [config["max_steps"]]
    if config["samples_per_item"] == 1:
        step = _samples_per_step(plan)
        limits += [math.ceil(config[name] / step) for name in ("max_samples", "parity_samples") if config[name]]
    return min((int(limit) for limit in limits if limit), default=None)


def most_samples(plan: Plan) -> float | None:
    """The most samples that the config lets a round train; None if nothing limits them in a known way."""
    config = plan.config
    files = {item.path: item.files for item in plan.manifest}
    epoch = files.get(str(config.get("train_data")))
    limits = [
        _product(config["max_steps"], _samples_per_step(plan)),
        _product(config["max_samples"], 1),
        _product(config["max_epochs"], epoch),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _samples_per_step(plan: Plan) -> int:
    return plan.case.shape.cards * math.prod(int(plan.config.get(key) or 1) for key in PER_STEP)


def _product(limit: object, each: int | None) -> float | None:
    return float(limit) * each if isinstance(limit, (int, float)) and each is not None else None
