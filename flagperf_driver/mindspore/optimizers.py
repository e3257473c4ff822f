"""The optimizers by name, as parts of a graph.

MindSpore's Adam with decoupled weight decay does not correct the bias of its moments, and its Lamb clips the ratios.
These have the same formulas as in the other frameworks. Adam's operation is MindSpore's, because it updates a weight
and its moments at once; the correction of the bias is in its learning rate, epsilon and weight decay.
"""

from __future__ import annotations

from typing import Any, Mapping

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from flagperf_driver.training.weight_decay import without_decay


class MindSporeOptimizer(nn.Cell):  # type: ignore[misc]
    """Updates the weights inside a graph."""

    def __init__(self, config: Any, named: Mapping[str, ms.Parameter]) -> None:
        super().__init__(auto_prefix=False)
        without = without_decay({name: weight.ndim for name, weight in named.items()}, config)
        self.kind = str(config.optimizer)
        self.weights = ms.ParameterTuple(list(named.values()))
        self.decays = tuple(0.0 if name in without else float(config.weight_decay) for name in named)
        self.momentum, self.beta1, self.beta2 = map(float, (config.momentum, config.beta1, config.beta2))
        self.epsilon = float(config.epsilon)
        self.max_grad_norm = float(config.max_grad_norm or 0.0)
        self.steps = _zeros("steps", ())
        self.means = _moments("mean", named)
        self.squares = _moments("square", {} if self.kind == "sgd" else named)
        self.adam = ops.AdamWeightDecay()

    def construct(self, gradients: Any, rate: Any) -> Any:
        """Update all weights; return the number of steps."""
        gradients = self._clipped(gradients)
        steps = ops.assign_add(self.steps, ms.Tensor(1.0, ms.float32))
        first, second = 1.0 - ops.pow(self.beta1, steps), ops.sqrt(1.0 - ops.pow(self.beta2, steps))
        for number in range(len(self.weights)):
            weight, decay, gradient = self.weights[number], self.decays[number], gradients[number]
            if decay and self.kind in ("sgd", "adam"):
                gradient = gradient + decay * weight
            if self.kind in ("adam", "adamw"):
                decay = decay if self.kind == "adamw" else 0.0
                self._adam(number, gradient, (rate * second / first, self.epsilon * second, decay * first / second))
            elif self.kind == "sgd":
                ops.assign(weight, weight - rate * self._sgd(number, gradient))
            else:
                change = self._lamb(number, gradient, first, second)
                if decay:
                    change = change + decay * weight
                    change = change * _trust_ratio(weight, change)
                ops.assign(weight, weight - rate * change)
        return steps

    def _clipped(self, gradients: Any) -> Any:
        if self.max_grad_norm == 0.0:
            return gradients
        total = ms.Tensor(0.0, ms.float32)
        for gradient in gradients:
            total = total + ops.square(gradient).sum()
        factor = self.max_grad_norm / ops.maximum(ops.sqrt(total), ms.Tensor(self.max_grad_norm, ms.float32))
        return tuple([gradient * factor for gradient in gradients])

    def _sgd(self, number: int, gradient: Any) -> Any:
        velocity = self.momentum * self.means[number] + gradient
        ops.assign(self.means[number], velocity)
        return velocity

    def _adam(self, number: int, gradient: Any, corrected: tuple[Any, Any, Any]) -> None:
        rate, epsilon, decay = corrected
        moments = self.means[number], self.squares[number]
        self.adam(self.weights[number], *moments, rate, self.beta1, self.beta2, epsilon, decay, gradient)

    def _lamb(self, number: int, gradient: Any, first: Any, second: Any) -> Any:
        mean = self.beta1 * self.means[number] + (1.0 - self.beta1) * gradient
        square = self.beta2 * self.squares[number] + (1.0 - self.beta2) * ops.square(gradient)
        ops.assign(self.means[number], mean)
        ops.assign(self.squares[number], square)
        return mean / first / (ops.sqrt(square) / second + self.epsilon)


def _trust_ratio(weight: Any, change: Any) -> Any:
    """Return |weight| / |change|, 1 if either is zero."""
    size, step = ops.sqrt(ops.square(weight).sum()), ops.sqrt(ops.square(change).sum())
    one = ms.Tensor(1.0, ms.float32)
    return ops.select(ops.logical_and(size > 0, step > 0), size / ops.select(step > 0, step, one), one)


def _moments(kind: str, named: Mapping[str, ms.Parameter]) -> ms.ParameterTuple:
    return ms.ParameterTuple([_zeros(f"{kind}/{name}", weight.shape) for name, weight in named.items()])


def _zeros(name: str, shape: tuple[int, ...]) -> ms.Parameter:
    return ms.Parameter(np.zeros(shape, np.float32), name=f"optimizer/{name}", requires_grad=False)
