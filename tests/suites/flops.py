"""Counts a suite's forward passes: ``python flops.py SUITE_DIR SCALE...`` prints FLOPs per sample by scale, as JSON.

It is one micro-step as the loop makes it, of the suite's own steps on synthetic data, on tensors without memory. Only
the forward pass is counted: torch's counter takes the weights' gradient of a convolution in groups as many times as
there are groups, which makes a depthwise one's backward pass hundreds of forward passes.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

BATCH = 2


def steps_of(suite: Path) -> Any:
    """What the suite's program would give the loop."""
    from flagperf_driver import pytorch

    given: list[Any] = []
    pytorch.main = given.append  # type: ignore[assignment]
    runpy.run_path(str(suite / "run_pretraining.py"), run_name="__main__")
    return given[0]


def context(suite: Path, scale: str, device: str) -> Any:
    from flagperf_driver import defaults
    from flagperf_driver.driver import Config
    from flagperf_driver.pytorch import Context

    files = [Path(defaults.__file__), suite / "config/_base.py"]
    files += [] if scale == "reference" else [suite / f"config/_{scale}.py"]
    values: dict[str, Any] = {}
    for file in files:
        values.update({key: value for key, value in runpy.run_path(str(file)).items() if key[0] != "_"})
    # Weights to start from change no count, and are not at hand.
    values.update({"train_batch_size": BATCH, **({"init_checkpoint": None} if "init_checkpoint" in values else {})})
    return Context(config=Config(values), device=torch.device(device), scale=scale, synthetic=True, suite_dir=suite)


def counted(steps: Any, suite: Path, scale: str) -> float:
    batch = next(iter(steps.create_train_data(context(suite, scale, "cpu"))))
    ctx = context(suite, scale, "meta")
    with ctx.device:
        model = steps.create_model(ctx).train()
    samples: int = steps.count_samples(ctx, batch)
    batch = steps.prepare_batch(ctx, batch)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        steps.calculate_loss(ctx, model, batch)
    return float(counter.get_total_flops()) / samples


def main() -> None:
    suite, *scales = sys.argv[1:]
    root = Path(suite).resolve()
    sys.path[:0] = [str(root.parents[2]), str(root.parents[1]), str(root)]
    steps = steps_of(root)
    print(json.dumps({scale: counted(steps, root, scale) for scale in scales}))


if __name__ == "__main__":
    main()
