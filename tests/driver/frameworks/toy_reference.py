"""The toy's training by hand, in numpy and double precision: what every framework must compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flagperf_driver.driver import Config
from flagperf_driver.training.steps import Context
from tests.driver.frameworks import toy_data

Weights = dict[str, Any]


def train(framework: str, **settings: Any) -> Weights:
    """Return the weights after ``max_steps`` steps of 32 samples with a constant learning rate."""
    config = Config(toy_data.case(framework, **settings)["config"])
    weights = {name: value.astype(np.float64) for name, value in toy_data.initial().items()}
    optimizer = Optimizer(config)
    for step, batch in zip(range(1, config.max_steps + 1), _batches(config), strict=False):
        optimizer.step(step, weights, gradients(weights, batch["values"].astype(np.float64), batch["labels"]))
    return weights


def _batches(config: Any) -> Iterator[Any]:
    data = toy_data.TrainData(Context(config))
    for epoch in range(100):
        data.set_epoch(epoch)
        yield from data


def gradients(weights: Weights, values: Any, labels: Any) -> Weights:
    """Return the gradients of the mean cross entropy."""
    before = values @ weights["first.weight"] + weights["first.bias"]
    hidden = np.maximum(before, 0)
    scores = hidden @ weights["last.weight"] + weights["last.bias"]
    likely = np.exp(scores - scores.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    likely[np.arange(len(labels)), labels] -= 1
    likely /= len(labels)
    back = (likely @ weights["last.weight"].T) * (before > 0)
    return {
        "first.weight": values.T @ back,
        "first.bias": back.sum(0),
        "last.weight": hidden.T @ likely,
        "last.bias": likely.sum(0),
    }


class Optimizer:
    """The four optimizers as in their papers; SGD and Adam add the weight decay to the gradient."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.means: Weights = {}
        self.squares: Weights = {}

    def step(self, number: int, weights: Weights, found: Mapping[str, Any]) -> None:
        config = self.config
        norm = np.sqrt(sum((gradient**2).sum() for gradient in found.values()))
        factor = 1.0 if config.max_grad_norm is None else min(1.0, config.max_grad_norm / norm)
        for name, gradient in found.items():
            decay = self._decay(name, weights[name])
            weights[name] = weights[name] - config.learning_rate * self._update(
                number, name, weights[name], gradient * factor, decay
            )

    def _decay(self, name: str, weight: Any) -> float:
        config = self.config
        excluded = (weight.ndim == 1 and not config.decay_vectors) or bool(config.no_decay and name == "first.bias")
        return 0.0 if excluded else float(config.weight_decay)

    def _update(self, number: int, name: str, weight: Any, gradient: Any, decay: float) -> Any:
        config, kind = self.config, self.config.optimizer
        if kind in ("sgd", "adam"):
            gradient = gradient + decay * weight
        if kind == "sgd":
            self.means[name] = config.momentum * self.means.get(name, 0.0) + gradient
            return self.means[name]
        self.means[name] = config.beta1 * self.means.get(name, 0.0) + (1 - config.beta1) * gradient
        self.squares[name] = config.beta2 * self.squares.get(name, 0.0) + (1 - config.beta2) * gradient**2
        mean = self.means[name] / (1 - config.beta1**number)
        update = mean / (np.sqrt(self.squares[name] / (1 - config.beta2**number)) + config.epsilon)
        if kind == "adam":
            return update
        update = update + decay * weight
        if kind == "lamb" and decay:
            update = update * np.linalg.norm(weight) / np.linalg.norm(update)
        return update
