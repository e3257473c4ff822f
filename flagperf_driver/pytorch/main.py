"""The program of one rank."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from flagperf_driver import driver, heartbeat
from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.hooks import set_up_device
from flagperf_driver.pytorch.parts import context, with_vendor_steps
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.pytorch.trainer import TorchTrainer
from flagperf_driver.training.program import exit_now
from flagperf_driver.training.replay import training_of


def main(steps: PyTorchSteps) -> None:
    """Run this process's rank of the training, then exit."""
    suite_dir = Path(sys.argv[0]).resolve().parent
    driver.run(functools.partial(_run, steps, suite_dir))
    exit_now()


def _run(steps: PyTorchSteps, suite_dir: Path, rank: Rank) -> None:
    rank.heartbeat.beat(0, heartbeat.INIT)
    case, world = rank.case, rank.world
    hooks, device = set_up_device(case, world)
    with distributed.process_group(case.backend, device, world.world_size, rank.config.init_timeout_s):
        ctx = context(rank, device, suite_dir, hooks)
        trainer = TorchTrainer(rank, ctx, with_vendor_steps(steps, case.extern), own=steps)
        training_of(rank, trainer).run()
    rank.heartbeat.beat(ctx.progress.step, heartbeat.DONE)
