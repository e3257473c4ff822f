"""The state of a training in TensorFlow 2: weights, optimizer, loss scale and the random generators."""

from __future__ import annotations

from typing import Any, Mapping

import keras
import numpy as np
import tensorflow as tf

from flagperf_driver.tensorflow2.optimizers import TensorFlowOptimizer
from flagperf_driver.training.base import Arrays

_STATISTICS = ("moving_mean", "moving_variance")
_GENERATOR = "seed_generator_state"


class TensorFlowStates:
    """The values of a training that a checkpoint keeps."""

    def __init__(self, model: keras.Model, optimizer: TensorFlowOptimizer, scale: tf.Variable) -> None:
        self._model, self._optimizer, self._scale = model, optimizer, scale

    def weights(self) -> Arrays:
        return {weight.path: weight.numpy() for weight in self._model.trainable_variables}

    def arrays(self) -> Arrays:
        return {
            **{f"model/{variable.path}": variable.numpy() for variable in self._model.variables},
            **{f"optimizer/{number}": variable.numpy() for number, variable in enumerate(self._optimizer.variables)},
            "scale": self._scale.numpy(),
        }

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        for variable in self._model.variables:
            value = arrays[f"model/{variable.path}"]
            if variable.path.endswith(_GENERATOR):
                # A generator has a seed, which differs between ranks, and a counter, which does not.
                value = np.array([variable.numpy()[0], value[1]], value.dtype)
            variable.assign(value)
        for number, variable in enumerate(self._optimizer.variables):
            variable.assign(arrays[f"optimizer/{number}"])
        self._scale.assign(arrays["scale"])

    def statistics(self) -> Arrays:
        return {variable.path: variable.numpy() for variable in self._model.variables if variable.name in _STATISTICS}

    def set_statistics(self, arrays: Mapping[str, Any]) -> None:
        for variable in self._model.variables:
            if variable.path in arrays:
                variable.assign(arrays[variable.path])


def seed_generators(model: keras.Model, seed: int) -> None:
    """Seed the model's random generators; Keras has seeded them alike on all ranks."""
    for number, variable in enumerate(model.variables):
        if variable.path.endswith(_GENERATOR):
            variable.assign(np.array([(seed + number) % 2**31, 0], np.int64))
