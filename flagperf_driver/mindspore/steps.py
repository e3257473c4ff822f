"""The steps that a suite passes to the loop, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import mindspore as ms
import numpy as np

from flagperf_driver.training import steps
from flagperf_driver.training.batches import converted
from flagperf_driver.training.steps import Batch, Context


def prepare_batch(ctx: Context, batch: Batch) -> Batch:  # noqa: ARG001 - a step's signature
    """Copy the batch's arrays to the device."""
    return converted(batch, lambda item: ms.Tensor(item) if isinstance(item, np.ndarray) else item)


@dataclass(frozen=True)
class MindSporeSteps(steps.Steps):
    """The named steps of a training: those of every framework, and further ones, which have defaults.

    A prepared batch consists of dicts, tuples and lists of tensors. ``calculate_loss`` and ``evaluate_batch`` become
    parts of graphs: they run once for each shape of a batch, and must use what MindSpore's compiler supports. Their
    ``ctx`` has the values of the context, but no methods.
    """

    prepare_batch: Callable[[Context, Batch], Batch] = prepare_batch
