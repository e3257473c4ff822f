"""Print the losses of five steps of suites at their small scale, from the same weights, as JSON by suite.

    python -m tests.suites.five_steps '{"SUITE_DIR": ["WEIGHTS.npz", {"KEY": VALUE}]}'

PyTorch's suite writes its initial weights to the file. A suite of another framework reads them with the function
``load(model, file)`` of its ``tests/from_pytorch.py``.
"""

from __future__ import annotations

import io
import itertools
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flagperf_driver.training.timeline import Timeline
from tests.suites import children, trainers, trials

STEPS = 5


def train(suite: Path, file: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the losses and the number of parameters."""
    rank = trials.rank_of(suite, None, io.StringIO(), scale="small", **settings)
    steps = trainers.steps_of(suite)
    if suite.name == "pytorch":
        trainer: Any = trainers.create(suite, rank, steps)
        np.savez(file, **trainer.parts.model.state_dict())
    else:
        load = runpy.run_path(str(suite / "tests" / "from_pytorch.py"))["load"]

        def create_model(ctx: Any) -> Any:
            model = steps.create_model(ctx)
            load(model, Path(file))
            return model

        trainer = trainers.create(suite, rank, replace(steps, create_model=create_model))
    timeline = Timeline(trainer.marks, warmup_steps=0)
    timeline.resume()
    batches = trainer.epoch(0, 0)
    for _ in itertools.repeat(None, STEPS):
        trainer.step(next(batches), batches, timeline)
        timeline.step(1)
        trainer.progress.step += 1
    parameters = sum(value.size for value in trainers.weights(trainer).values())
    return {"losses": trainer.losses(STEPS), "parameters": parameters}


if __name__ == "__main__":
    children.print_results(train, sys.argv[1])
