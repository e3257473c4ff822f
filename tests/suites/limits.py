"""Print the fastest step of suites at their small scale, what it moves, and the fastest rates of this core, as JSON.

    python -m tests.suites.limits '{"SUITE_DIR": []}'

Steps and rates are measured in turns, so that what disturbs the core in one turn disturbs both.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flagperf_driver.training.timeline import Timeline
from tests.suites import children, trainers, trials

TURNS, STEPS, CALLS = 3, 3, 8
SIZE, BYTES = 1024, 256 << 20


def fastest(function: Callable[[], Any], calls: int) -> float:
    """Return the seconds of the fastest call."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(suite: Path) -> dict[str, float]:
    """Return the seconds and samples of a step, its bytes, and the rates of a core in FLOP/s and B/s."""
    torch.set_num_threads(1)
    rank = trials.rank_of(suite, None, io.StringIO(), scale="small", synthetic=True)
    trainer: Any = trainers.create(suite, rank, trainers.steps_of(suite))
    timeline = Timeline(trainer.marks, warmup_steps=0)
    batches = trainer.epoch(0, 0)
    samples: list[int] = []

    def step() -> None:
        timeline.resume()
        samples.append(trainer.step(next(batches), batches, timeline))
        timeline.step(1)
        timeline.close()

    step()
    moved = trainer.step_bytes(step)
    left, right, product = (torch.rand(SIZE, SIZE) for _ in range(3))
    values = torch.zeros(BYTES // 4)
    turns = [
        (
            fastest(step, STEPS),
            fastest(lambda: torch.mm(left, right, out=product), CALLS),
            fastest(lambda: values.add_(1.0), CALLS),
        )
        for _ in range(TURNS)
    ]
    seconds, multiplied, updated = (min(times) for times in zip(*turns, strict=True))
    return {
        "seconds": seconds,
        "samples": samples[-1],
        "least": moved.least,
        "flops": 2 * SIZE**3 / multiplied,
        "bytes": 2 * BYTES / updated,
    }


if __name__ == "__main__":
    children.print_results(measure, sys.argv[1])
