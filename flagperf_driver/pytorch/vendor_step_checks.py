"""A vendor's steps in the place of the suite's: what they return, and the initial values of their model.

What they compute, a clean process repeats (``training/replay.py``).
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, Callable

import torch
from torch import nn
from torch.optim import Optimizer

from flagperf_driver.pytorch import sharding
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.distributed import named
from flagperf_driver.pytorch.steps import PyTorchSteps

_RETURN_VALUES = {
    **dict.fromkeys(("create_model", "convert_model", "model_to_fp16", "compile_model", "model_to_ddp"), "a model"),
    "create_optimizer": "an optimizer",
    "prepare_batch": "a batch",
    "calculate_loss": "a loss",
}
"""The steps that must not return None, each with its return value."""


class AdaptationError(ValueError):
    """A vendor's step returned nothing."""


def replaced(steps: PyTorchSteps, own: PyTorchSteps) -> tuple[str, ...]:
    """Return the names of the suite's steps that a vendor replaced."""
    names = sorted(item.name for item in fields(PyTorchSteps))
    return tuple(name for name in names if getattr(steps, name) is not getattr(own, name))


def create_model(ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps) -> nn.Module:
    """Return the model; a vendor's gets the initial values of the suite's."""
    model = own.create_model(ctx)
    if steps.create_model is own.create_model:
        return model
    theirs = steps.create_model(ctx)
    if not sharding.is_on_meta(theirs):
        copy_values(ctx, model, theirs)
    return theirs


def copy_values(ctx: PyTorchContext, model: nn.Module, theirs: nn.Module) -> None:
    """Copy the suite's parameters, and the buffers that both models have, into the vendor's model."""
    targets = {**dict(named(theirs.named_parameters())), **dict(named(theirs.named_buffers()))}
    values = [
        *((name, sharding.initial_value(ctx, model, name, value)) for name, value in named(model.named_parameters())),
        *named(model.named_buffers()),
    ]
    with torch.no_grad():
        for name, value in values:
            if name in targets and targets[name].shape == value.shape and not value.is_meta:
                targets[name].copy_(value.full_tensor() if hasattr(value, "full_tensor") else value)


def deviations(
    ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps, model: nn.Module, optimizer: Optimizer
) -> dict[str, list[str]]:
    """Return the class of a vendor's optimizer and that of the suite's, if they differ."""
    if steps.create_optimizer is own.create_optimizer:
        return {}
    theirs, ours = type(optimizer).__name__, type(own.create_optimizer(ctx, model)).__name__
    return {} if theirs == ours else {"optimizer class": [theirs, ours]}


# -- return values -----------------------------------------------------------------------------------------


def with_return_check(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a vendor's step so that it raises an error if it returns None and must not."""
    if name not in _RETURN_VALUES:
        return step

    @functools.wraps(step)
    def checked(*arguments: Any) -> Any:
        result = step(*arguments)
        if result is None:
            raise AdaptationError(f"the vendor's {name}() returned None; expected {_RETURN_VALUES[name]}")
        return result

    return checked
