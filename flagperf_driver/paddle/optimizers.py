"""Paddle's optimizers by name."""

from __future__ import annotations

from typing import Any, Callable

import paddle
from paddle.nn import ClipGradByGlobalNorm

from flagperf_driver.training.weight_decay import without_decay


def create(config: Any, model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    """Return the optimizer that ``config.optimizer`` names."""
    named = {name: parameter for name, parameter in model.named_parameters() if not parameter.stop_gradient}
    without = without_decay({name: parameter.ndim for name, parameter in named.items()}, config)
    excluded = {named[name].name for name in without}
    shared = {
        "learning_rate": float(config.learning_rate),
        "grad_clip": None if config.max_grad_norm is None else ClipGradByGlobalNorm(config.max_grad_norm),
    }
    adam = {"beta1": config.beta1, "beta2": config.beta2, "epsilon": config.epsilon}
    parameters = list(named.values())
    kinds: dict[str, Callable[[], Any]] = {
        "sgd": lambda: paddle.optimizer.Momentum(
            momentum=config.momentum, parameters=_regularized(parameters, excluded, config), **shared
        ),
        "adam": lambda: paddle.optimizer.Adam(parameters=_regularized(parameters, excluded, config), **adam, **shared),
        "adamw": lambda: paddle.optimizer.AdamW(
            parameters=parameters,
            weight_decay=config.weight_decay,
            apply_decay_param_fun=lambda name: name not in excluded,
            **adam,
            **shared,
        ),
        "lamb": lambda: paddle.optimizer.Lamb(
            parameters=parameters,
            lamb_weight_decay=config.weight_decay,
            exclude_from_weight_decay_fn=lambda parameter: parameter.name in excluded,
            **adam,
            **shared,
        ),
    }
    return kinds[config.optimizer]()


def _regularized(parameters: list[Any], excluded: set[str], config: Any) -> list[Any]:
    """Let the optimizer add the weight decay to the gradients. Groups would be clipped one by one."""
    for parameter in parameters:
        if parameter.name not in excluded:
            parameter.regularizer = paddle.regularizer.L2Decay(config.weight_decay)
    return parameters
