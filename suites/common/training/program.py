"""The training that a suite's config names: its steps, and its context."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import flagperf_driver.pytorch
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.training.progress import TrainingProgress


def steps_of(suite: Path) -> Steps:
    """Return the steps that the training's program passes to the driver."""
    sys.path.insert(0, str(suite))
    passed: list[Steps] = []
    main = flagperf_driver.pytorch.main
    flagperf_driver.pytorch.main = passed.append
    try:
        runpy.run_path(str(suite / "run_pretraining.py"), run_name="__main__")
    finally:
        flagperf_driver.pytorch.main = main
    return passed[0]


def context_of(ctx: Context, name: str, **changed: Any) -> Context:
    """Return the context of a training, ``MODEL:FRAMEWORK:NxP``, with the config that the harness planned for it."""
    model, framework, _ = name.split(":")
    config = Config({**ctx.config.case_config, **changed})
    return replace(
        ctx, config=config, suite_dir=ctx.suite_dir.parents[1] / model / framework, progress=TrainingProgress()
    )
