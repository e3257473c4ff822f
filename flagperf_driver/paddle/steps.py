"""The steps that a suite passes to the loop, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import paddle

from flagperf_driver.paddle import optimizers
from flagperf_driver.training import steps
from flagperf_driver.training.batches import converted
from flagperf_driver.training.steps import Batch, Context


def prepare_batch(ctx: Context, batch: Batch) -> Batch:  # noqa: ARG001 - a step's signature
    """Copy the batch's arrays to the device."""
    return converted(batch, lambda item: paddle.to_tensor(item) if isinstance(item, np.ndarray) else item)


def create_optimizer(ctx: Context, model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    """Return the optimizer that the config names, with the weight decay that the config describes."""
    return optimizers.create(ctx.config, model)


@dataclass(frozen=True)
class PaddleSteps(steps.Steps):
    """The named steps of a training: those of every framework, and further ones, which have defaults."""

    prepare_batch: Callable[[Context, Batch], Batch] = prepare_batch
    create_optimizer: Callable[[Context, Any], Any] = create_optimizer
