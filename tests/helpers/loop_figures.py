"""The figures of FINISHED beside what the other records of a rank say: the training loop must agree with itself."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flagperf_driver.logged_step import STEP_FIGURES
from flagperf_driver.perflog import Record

Json = Mapping[str, Any]
Compared = tuple[str, float, float, float]
"""The name of a figure, its value, and its bounds."""


def contradictions(log: Iterable[Record], config: Json, data_ranks: int = 1) -> list[str]:
    """Return a line for each figure that differs; times may differ by 0.2 s, sums of logged steps by 0.5 %."""
    records = list(log)
    compared = [*_times(records), *_steps(records, config), *_samples(records, config, data_ranks)]
    return [
        f"{name} is {got}, expected {least} to {most}"
        for name, got, least, most in compared
        if not least - 1e-9 * abs(least) <= got <= most + 1e-9 * abs(most)
    ]


def _about(name: str, got: float, expected: float, within: float) -> Compared:
    return name, got, expected - within, expected + within


def _of(records: Iterable[Record], event: str) -> list[Json]:
    return [record.value for record in records if record.event == event]


def _earlier(end: Json) -> Mapping[str, float]:
    """Return the part of the figures before the checkpoint from which the training resumed."""
    return defaultdict(float, end.get("resumed") or {})


def _times(records: list[Record]) -> Iterator[Compared]:
    (end,) = _of(records, "FINISHED")
    earlier, at = _earlier(end), {record.event: record.time_ms / 1000 for record in reversed(records)}
    train_s, evaluated = end["raw_train_time"] - earlier["train_time"], _of(records, "EVALUATE")
    evaluated_s = sum(one["time"] for one in evaluated)
    gaps = (
        (record.time_ms - before.time_ms) / 1000
        for before, record in itertools.pairwise(records)
        if record.event == "EVALUATE"
    )
    without = end["train_no_eval_time"] - earlier["train_time"] + earlier["eval_time"]
    yield _about("raw_train_time", train_s, at["TRAIN_END"] - at["TRAIN_START"], 0.2)
    if "INIT_START" in at:  # the program of a rank logs it, not the loop
        yield "init_time", end["init_time"], at["TRAIN_START"] - at["INIT_START"] - 0.2, math.inf
        yield _about("e2e_time", end["e2e_time"], end["init_time"] + at["FINISHED"] - at["TRAIN_START"], 0.2)
    yield _about("train_no_eval_time", train_s - without, evaluated_s, 0.01 + 0.002 * evaluated_s)
    yield _about("eval_time", end["eval_time"] - earlier["eval_time"], evaluated_s, 0.01 + 0.002 * evaluated_s)
    yield "EVALUATE time", evaluated_s, 0.0, sum(gaps) + 0.1 + 0.01 * len(evaluated)
    yield "pure_training_computing_time", sum(_windows(end)), 0.0, without + 0.1
    yield _about("p_whole", end["p_whole"], end["samples"] / end["raw_train_time"], 0.001 * end["p_whole"])
    yield _about("p_train", end["p_train"], end["samples"] / end["train_no_eval_time"], 0.001 * end["p_train"])


def _windows(end: Json) -> tuple[float, float]:
    """Return the seconds of steps, and of their waiting for input."""
    earlier = _earlier(end)
    waited = end["input_wait_time"] - earlier["input_wait_time"]
    return end["pure_training_computing_time"] - earlier["compute_time"], waited


def _steps(records: list[Record], config: Json) -> Iterator[Compared]:
    """Compare the steps' times with those of all STEP_END records, each of the steps since the one before."""
    (end,) = _of(records, "FINISHED")
    logged, compute_s, waited = _of(records, "STEP_END"), *_windows(end)
    first = before = _of(records, "STEP_BEGIN")[0]["step"] - 1
    seconds = waiting = samples = measured = straddling = 0.0
    for step in logged:
        took = step["step_time"] * (step["step"] - before)
        seconds, waiting = seconds + took, waiting + step["input_wait"]
        samples += step["throughput"] * took
        if step["step"] - first > config["timing_warmup_steps"]:
            whole = before - first >= config["timing_warmup_steps"]
            measured, straddling = (measured + took, straddling) if whole else (measured, took)
        before = step["step"]
    yield _about("step_time", seconds, compute_s + waited, 0.01 + 0.005 * seconds)
    yield _about("input_wait", waiting, waited, 0.01 + 0.005 * waited)
    yield _about("throughput", samples, end["samples"] - _earlier(end)["samples"], 0.005 * samples)
    if steps := end["measured_steps"]:
        of_steps = end["step_time"]
        total = of_steps["mean"] * steps
        yield "step_time.mean", total, 0.995 * measured - 0.01, 1.005 * (measured + straddling) + 0.01
        at50, at90, at99 = (min(steps - 1, int(share * steps)) for share in (0.5, 0.9, 0.99))
        least = (at90 - at50) * of_steps["p50"] + (at99 - at90) * of_steps["p90"] + (steps - at99) * of_steps["p99"]
        yield "step_time.p50", total, 0.999 * least, math.inf
        core_s = end["measured_samples"] / end["p_core"]
        yield "p_core", core_s, 0.995 * (total - waited), 1.005 * compute_s
        if end["forward_time"] is not None:
            yield "forward_time", end["forward_time"], 0.0, 1.001 * of_steps["mean"]


def _samples(records: list[Record], config: Json, data_ranks: int) -> Iterator[Compared]:
    (end,) = _of(records, "FINISHED")
    last, every = _of(records, "STEP_END")[-1], max(config.get("log_freq") or 1, 1)
    per_step = config["train_batch_size"] * data_ranks * max(config.get("gradient_accumulation_steps") or 1, 1)
    smaller = math.ceil(end["epochs"]) + 1  # an epoch may end with a smaller step
    for name in ("", "measured_"):
        steps, most = end[f"{name}steps"], end[f"{name}steps"] * per_step * max(config.get("samples_per_item") or 1, 1)
        yield f"{name}samples", end[f"{name}samples"], steps * per_step - min(smaller, steps) * (per_step - 1), most
    yield "last step", end["steps"], last["step"], last["step"] + every - 1
    yield "last samples", end["samples"], last["samples"], last["samples"] + (end["steps"] - last["step"]) * per_step
    trained = end["steps"] - _earlier(end)["step"]
    yield _about("measured_steps", end["measured_steps"], max(trained - end["warmup_steps"], 0), 0)
    yield _about("warmup_steps", end["warmup_steps"], config["timing_warmup_steps"], 0)
    for name in STEP_FIGURES:
        if end.get(name) is not None and last["step"] == end["steps"]:
            yield _about(name, end[name], last[name], 0)
