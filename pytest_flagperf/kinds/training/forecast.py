"""The forecast of a training: whether it converges, how long a round takes, and when it saves checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median

from flagperf_driver.training.checkpoint_interval import FIRST_STEP, interval_s
from flagperf_driver.training.parallel import DDP, Parallel
from pytest_flagperf.config.layers import PER_STEP
from pytest_flagperf.kind import DurationEstimate
from pytest_flagperf.plan import Plan
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables.published import Published
from pytest_flagperf.results.verdicts import has_converged
from pytest_flagperf.running.forecast import declared, is_same_case, measured, values_of

UTILIZATION = 0.3
"""The share of the declared peak that a training is assumed to reach if no run measured its throughput."""

# -- whether it converges ----------------------------------------------------------------------------------------


def convergence(plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> str:
    """Return a line about the convergence of a case, from stored runs and published results."""
    if plan.synthetic or plan.config["parity_samples"] is not None:
        return ""
    if plan.throughput_only:
        return f"not required; --no-throughput-only trains to the target, {training_time(plan, stored_runs)}"
    where = next(_converged(plan, stored_runs, results), "")
    return (
        f"verified in {where}" if where else "not verified: no stored or published run of this case reached its target"
    )


def training_time(plan: Plan, stored_runs: StoredRuns) -> str:
    """Return the estimated duration of the longest training that the config allows, with its source."""
    samples, (rate, source) = most_samples(plan), _throughput(plan, stored_runs)
    if samples is None or rate is None:
        missing = "limit on samples" if samples is None else "stored throughput and no declared peak"
        return f"duration unknown: no {missing}"
    seconds = quantity(samples / rate, "s")
    unit = plan.sample_unit
    return f"estimated {seconds} for at most {quantity(samples, unit)} ({quantity(rate, f'{unit}/s', 3)} {source})"


def _converged(plan: Plan, stored_runs: StoredRuns, results: Iterable[Published]) -> Iterator[str]:
    """Yield the names of runs and published files in which the case reached its target."""
    for _, rounds in stored_runs.of_case(plan.case.without_repeat):
        if any(is_same_case(plan, outcome) and has_converged(outcome) for outcome in rounds):
            yield "a stored run"
    for result in results:
        if (
            result.converged
            and result.case.without_repeat == plan.case.without_repeat
            and is_same_case(plan, result.first)
        ):
            yield f"{result.file.parent.name}/{result.file.name}"


def replay(plan: Plan) -> Iterator[str]:
    """Yield the line of --plan about the replay: what its states need, and its time."""
    if plan.saves_states:
        parts = [size for part, size in plan.memory.items() if part in ("weights", "optimizer")]
        ranks = plan.shape.cards // Parallel.of(plan.config.get("parallel", DDP), plan.shape.cards).replicate
        size = f" of {quantity(sum(parts) * ranks, 'bytes')}" if parts else ""
        yield f"a replay: at most ten states{size} on the disk; a clean process: 5 % of the time, at most 3 minutes"


def checkpoints(plan: Plan, stored_runs: StoredRuns) -> Iterator[str]:
    """Yield the line of --plan about the checkpoints, if the mean time between two failures decides when to save."""
    config = plan.config
    failures_s = config.get("failure_interval_s")
    if plan.throughput_only or not failures_s or config.get("checkpoint_steps"):
        return
    rounds = (
        values_of([one for one in rounds if is_same_case(plan, one)], "save_pause")
        for _, rounds in stored_runs.of_case(plan.case.without_repeat)
    )
    pauses = next(filter(None, rounds), None)
    if pauses is None:
        yield (
            f"a checkpoint after {FIRST_STEP} steps, then at the interval that follows from its pause and one failure"
            f" in {quantity(failures_s, 's')} (failure_interval_s)"
        )
        return
    pause = median(pauses)
    yield (
        f"a checkpoint every {quantity(interval_s(pause, failures_s), 's')}: a pause of {quantity(pause, 's')} in"
        f" {count(len(pauses), 'stored round')}, one failure in {quantity(failures_s, 's')} (failure_interval_s)"
    )


# -- how long a round takes --------------------------------------------------------------------------------------


def estimate(plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | str:
    """Return how long a round takes, by stored runs, by what is declared, or by a throughput."""
    known = _stored(plan, stored_runs) or declared(plan) or _by_throughput(plan, stored_runs)
    return known or "neither expected_time_s nor the chip's peak is declared"


def _stored(plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | None:
    """Estimate by the newest stored run with the same work: its durations, else its step time and the step limit."""
    steps = most_steps(plan)
    for _, rounds in stored_runs.of_case(plan.case.without_repeat):
        same_work = [outcome for outcome in rounds if _is_same_work(plan, outcome)]
        if known := measured([outcome for outcome in same_work if _is_as_long(plan, outcome)]):
            return known
        step_times = values_of(same_work, "step_time_mean")
        if step_times and steps is not None:
            step_s = median(step_times)
            source = f"{count(steps, 'step')} at {quantity(step_s, 's')} in {count(len(step_times), 'stored round')}"
            return DurationEstimate(steps * step_s, f"{source}, without evaluations", at_most=True)
    return None


def _is_same_work(plan: Plan, outcome: Outcome) -> bool:
    config = plan.config
    work = outcome.work
    stored = (outcome.parity_samples, work.batch_per_card, work.accumulation, work.data_ranks or outcome.cards)
    planned = (config["parity_samples"], config["train_batch_size"], config["gradient_accumulation_steps"])
    return is_same_case(plan, outcome) and stored == (*planned, plan.data_ranks)


def _is_as_long(plan: Plan, outcome: Outcome) -> bool:
    """Return True if the round had the limits of the plan; a smoke test with a few steps does not."""
    limits = {name: limit for name in ("max_steps", "max_samples", "max_epochs") if (limit := plan.config.get(name))}
    return outcome.throughput_only == plan.throughput_only and (plan.throughput_only or outcome.limits == limits)


def _by_throughput(plan: Plan, stored_runs: StoredRuns) -> DurationEstimate | None:
    """Estimate by the most samples of a round, and a stored or assumed throughput of the case."""
    samples, (rate, rate_source), steps = most_samples(plan), _throughput(plan, stored_runs), most_steps(plan)
    if plan.throughput_only and steps is not None:
        samples = float(steps * _samples_per_step(plan))
    if plan.config["parity_samples"] or samples is None or rate is None:
        return None
    source = f"{quantity(samples, plan.sample_unit)}, {quantity(rate, f'{plan.sample_unit}/s', 3)} {rate_source}"
    return DurationEstimate(samples / rate, source, at_most=not plan.throughput_only)


def _throughput(plan: Plan, stored_runs: StoredRuns) -> tuple[float | None, str]:
    """Return the throughput of the newest stored run of the case, else one from the declared peak; and its source."""
    for _, rounds in stored_runs.of_case(plan.case.without_repeat):
        rates = [rate for outcome in rounds if (rate := outcome.value("p_core")) and outcome.vendor == plan.vendor]
        rates = rates if all(outcome.scale == plan.scale for outcome in rounds) else []
        if rates:
            return median(rates), "measured"
    peak = plan.case.shape.cards * (plan.peak_tflops or 0.0) * 1e12
    assumed = UTILIZATION * peak / plan.flops_per_sample if plan.flops_per_sample and peak else None
    return assumed, f"at an assumed {UTILIZATION * 100:g} % of the peak"


# -- limits of a training ----------------------------------------------------------------------------------------


def most_steps(plan: Plan) -> int | None:
    """Return the optimizer steps after which a round ends at the latest; None if only epochs limit it."""
    config = plan.config
    if plan.throughput_only:
        return int(config["timing_warmup_steps"] + config["throughput_steps"])
    limits = [config["max_steps"]]
    if config["samples_per_item"] == 1:
        step = _samples_per_step(plan)
        limits += [math.ceil(config[name] / step) for name in ("max_samples", "parity_samples") if config[name]]
    return min((int(limit) for limit in limits if limit), default=None)


def most_samples(plan: Plan) -> float | None:
    """Return the most samples that a round trains with this config; None without a known limit."""
    config = plan.config
    files = {item.path: item.files for item in plan.manifest}
    samples_per_epoch = files.get(str(config.get("train_data")))
    limits = [
        _product(config["max_steps"], _samples_per_step(plan)),
        _product(config["max_samples"], 1),
        _product(config["max_epochs"], samples_per_epoch),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _samples_per_step(plan: Plan) -> int:
    return plan.data_ranks * math.prod(int(plan.config.get(key) or 1) for key in PER_STEP)


def _product(limit: object, samples: int | None) -> float | None:
    return float(limit) * samples if isinstance(limit, (int, float)) and samples is not None else None
