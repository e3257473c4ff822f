"""Measurements with PyTorch: a suite passes its measurement to ``main``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

import torch

from flagperf_driver import driver, heartbeat, seeds
from flagperf_driver.driver import Rank
from flagperf_driver.measuring.measurement import Measurement
from flagperf_driver.measuring.program import Measuring
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, parts
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.hooks import module_versions, set_up_device
from flagperf_driver.training.program import exit_now


def main(measurement: Callable[[PyTorchContext], Measurement]) -> None:
    """Run this process's rank of the measurement, then exit."""
    suite_dir = Path(sys.argv[0]).resolve().parent
    driver.run(functools.partial(_run, measurement, suite_dir))
    exit_now()


def _run(measurement: Callable[[PyTorchContext], Measurement], suite_dir: Path, rank: Rank) -> None:
    rank.heartbeat.beat(0, heartbeat.INIT)
    case, world = rank.case, rank.world
    hooks, device = set_up_device(case, world)
    with distributed.process_group(case.backend, device, world.world_size, rank.config.init_timeout_s):
        ctx = parts.context(rank, device, suite_dir, hooks)
        hooks.settings(device, rank.config)
        parts.seed(ctx, seeds.RANK, ctx.rank)
        points = Measuring(rank, measurement(ctx), _TorchDevice(rank, ctx)).run()
    rank.heartbeat.beat(points, heartbeat.DONE)


class _TorchDevice:
    """The rank's device, and the exchange with the other ranks."""

    def __init__(self, rank: Rank, ctx: PyTorchContext) -> None:
        self.marks = ctx.hooks.events(ctx.device)
        self._rank, self._ctx = rank, ctx

    def describe(self) -> dict[str, Any]:
        ctx = self._ctx
        return {
            "device": devices.name(ctx.device),
            "framework_version": torch.__version__,
            "libraries": {**devices.libraries(ctx.device), **module_versions(self._rank.case.modules)},
            "precision": ctx.config.precision,
            "world_size": ctx.world_size,
            "replaced_hooks": ctx.hooks.replaced,
        }

    def maximum(self, values: Sequence[float]) -> list[float]:
        return distributed.maximum(values, self._ctx.device)

    def peak_memory(self) -> int | None:
        return self._ctx.hooks.memory(self._ctx.device)

    def threads(self) -> int:
        threads: int = torch.get_num_threads()
        return threads
