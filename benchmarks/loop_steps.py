"""Measure the overhead of the training loop per step, compared with the same step written by hand (``by_hand/``).

Whenever the loop reads its next batch, the hand-written step trains a copy of the model on this batch. The two steps
alternate, so that disturbances of the machine affect both. The time of a log point, every 50 steps, is measured
separately and divided among its steps. The smallest model shows the overhead in microseconds, the largest as a
percentage.

This program, loop_steps.py FRAMEWORK, runs in the framework's environment of the suites and prints JSON.
"""

from __future__ import annotations

import importlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flagperf_driver import driver, options, perflog
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.training.loop import Training

FRAMEWORK = sys.argv[1]
LOG_FREQ = 50
WARM_UP = 100
MODELS = {"tiny": (64, 2, 8, 2000), "middle": (384, 3, 64, 800), "suite": (1024, 3, 128, 300)}
"""By name: width, layers, batch size, steps. A step of "suite" takes as long as a step of the fastest small suite."""
DEVICES = {"tensorflow2": "CPU", "mindspore": "CPU"}
"""The names of the CPU in frameworks that do not call it cpu."""
by_hand: Any = importlib.import_module(f"benchmarks.by_hand.{FRAMEWORK}")

Step = Callable[[np.ndarray, np.ndarray], None]


class TimedData:
    """The loop's training data, which run the hand-written step and time both: a loop step is between two batches."""

    def __init__(self, width: int, size: int, step: Step, count: int) -> None:
        rng = np.random.default_rng(1)
        self.batch = (rng.standard_normal((size, width)).astype(np.float32), rng.integers(10, size=size))
        self.step, self.count = step, count
        self.bare: list[float] = []
        self.loop: list[float] = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(self.count):
            begin = time.perf_counter()
            self.step(*self.batch)
            between = time.perf_counter()
            self.bare.append(between - begin)
            yield self.batch
            self.loop.append(time.perf_counter() - between)


def steps(data: TimedData) -> dict[str, Any]:
    """Return the steps that do not depend on the framework."""
    return {
        "create_train_data": lambda _: data,
        "create_eval_data": lambda _: [data.batch],
        "summarize": lambda *_: {"none": 0.0},
        "count_samples": lambda _, batch: len(batch[1]),
    }


def rank(folder: Path, count: int) -> driver.Rank:
    values = options.values(FRAMEWORK)
    values.update(max_steps=count, eval_at_start=False, log_freq=LOG_FREQ)
    metric = {"name": "none", "direction": "higher", "unit": "", "target": 1.0}
    case = {
        "schema": 1, "case": f"toy:{FRAMEWORK}:CPU:1:1:1", "model": "toy", "framework": FRAMEWORK, "vendor": "cpu",
        "hardware": "CPU", "nnodes": 1, "nproc": 1, "round": 1, "token": "", "seed": 1, "scale": "small",
        "synthetic": False, "throughput_only": False, "metric": metric, "sample_unit": "samples",
        "device": DEVICES.get(FRAMEWORK, "cpu"), "backend": "gloo", "modules": [], "device_module": None,
        "data_dir": None, "extern": None, "config": values,
    }  # fmt: skip
    beats = Heartbeat(folder / "rank0.progress")
    run_case, log = driver.RunCase.from_json(case), perflog.PerfLog(0, io.StringIO())
    log.names = run_case.names
    return driver.Rank(run_case, driver.World(), log, beats)


@dataclass(frozen=True)
class Pairs:
    """Pairs of the times of a hand-written step and a step of the loop, in microseconds."""

    plain: list[tuple[float, float]]
    logged: list[tuple[float, float]]


def measure(name: str, folder: Path) -> Pairs:
    width, layers, size, count = MODELS[name]
    data = TimedData(width, size, by_hand.bare_step(by_hand.make_model(width, layers)), count + 1)
    this_rank = rank(folder, count)
    Training(this_rank, by_hand.trainer(this_rank, by_hand.make_model(width, layers), steps(data))).run()
    pairs = [(bare * 1e6, loop * 1e6) for bare, loop in zip(data.bare, data.loop, strict=False)]
    last = len(pairs) - len(pairs) % LOG_FREQ
    numbered = list(enumerate(pairs, 1))[WARM_UP:last]
    return Pairs(
        [pair for number, pair in numbered if number % LOG_FREQ],
        [pair for number, pair in numbered if not number % LOG_FREQ],
    )


def over(pairs: list[tuple[float, float]]) -> float:
    """Return the median of the pairs' differences, which slow changes of the machine do not affect."""
    return statistics.median(loop - bare for bare, loop in pairs)


def main() -> None:
    """Print for each model the hand-written step and the loop's overhead, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: measure(name, Path(folder)) for name in MODELS}
    # A log point takes the same time for every model; the shortest steps show it best.
    tiny = measured["tiny"]
    log_point = over(tiny.logged) - over(tiny.plain)
    steps = {
        name: {
            "bare": statistics.median(bare for bare, _ in pairs.plain),
            "added": over(pairs.plain) + log_point / LOG_FREQ,
        }
        for name, pairs in measured.items()
    }
    print(json.dumps({"log_point": log_point, "steps": steps}))


if __name__ == "__main__":
    main()
