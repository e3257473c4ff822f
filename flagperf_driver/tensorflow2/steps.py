"""The steps that a suite passes to the loop, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np
import tensorflow as tf

from flagperf_driver.training import steps
from flagperf_driver.training.batches import converted
from flagperf_driver.training.steps import Batch, Context


def prepare_batch(ctx: Context, batch: Batch) -> Batch:  # noqa: ARG001 - a step's signature
    """Copy the batch's arrays to the device."""
    return converted(batch, lambda item: tf.constant(item) if isinstance(item, np.ndarray) else item)


@dataclass(frozen=True)
class TensorFlowSteps(steps.Steps):
    """The named steps of a training: those of every framework, and further ones, which have defaults.

    The model is a Keras model whose variables exist. ``calculate_loss`` and ``evaluate_batch`` become parts of graphs:
    they run once for each shape of a batch, and must use TensorFlow's operations only.
    """

    prepare_batch: Callable[[Context, Batch], Batch] = prepare_batch
