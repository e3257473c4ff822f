"""The optimizers by name, as parts of a graph.

Keras' SGD multiplies the velocity by the learning rate, Keras' Adam adds epsilon to another root, and Keras has no LAMB
with a ratio for each weight. These have the same formulas as in the other frameworks.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import tensorflow as tf

from flagperf_driver.training.weight_decay import without_decay


class TensorFlowOptimizer:
    """Updates the weights inside a graph."""

    def __init__(self, config: Any, named: Mapping[str, tf.Variable]) -> None:
        without = without_decay({name: len(weight.shape) for name, weight in named.items()}, config)
        self.name = str(config.optimizer)
        self._config = config
        self._weights = list(named.values())
        self._decays = [0.0 if name in without else float(config.weight_decay) for name in named]
        self.steps = tf.Variable(0.0, trainable=False)
        self.moments = [
            [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in named.values()]
            for _ in range(1 if self.name == "sgd" else 2)
        ]

    @property
    def variables(self) -> list[tf.Variable]:
        return [self.steps, *(moment for of_weights in self.moments for moment in of_weights)]

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        """Update all weights."""
        if self._config.max_grad_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._config.max_grad_norm)
        steps = self.steps.assign_add(1.0)
        corrections = 1.0 - tf.pow(self._config.beta1, steps), tf.sqrt(1.0 - tf.pow(self._config.beta2, steps))
        for number, (weight, gradient, decay) in enumerate(zip(self._weights, gradients, self._decays)):
            if self.name in ("sgd", "adam") and decay:
                gradient = gradient + decay * weight
            moments = [of_weights[number] for of_weights in self.moments]
            change = self._sgd(moments, gradient) if self.name == "sgd" else self._adam(moments, gradient, corrections)
            if self.name in ("adamw", "lamb") and decay:
                change = change + decay * weight
                change = change * _trust_ratio(weight, change) if self.name == "lamb" else change
            weight.assign_sub(rate * change)

    def _sgd(self, moments: Sequence[tf.Variable], gradient: tf.Tensor) -> tf.Tensor:
        return moments[0].assign(self._config.momentum * moments[0] + gradient)

    def _adam(
        self, moments: Sequence[tf.Variable], gradient: tf.Tensor, corrections: tuple[tf.Tensor, tf.Tensor]
    ) -> tf.Tensor:
        """Return the change of a weight; the corrections are those of the bias of its moments."""
        beta1, beta2 = self._config.beta1, self._config.beta2
        mean = moments[0].assign(beta1 * moments[0] + (1.0 - beta1) * gradient)
        square = moments[1].assign(beta2 * moments[1] + (1.0 - beta2) * tf.square(gradient))
        first, second = corrections
        return mean * (second / first) / (tf.sqrt(square) + self._config.epsilon * second)


def _trust_ratio(weight: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
    """Return |weight| / |change|, 1 if either is zero."""
    size, step = tf.norm(weight), tf.norm(change)
    return tf.where((size > 0) & (step > 0), size / step, 1.0)
