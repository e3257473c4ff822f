"""Check that a vendor's steps keep the suite's model and optimizer.

Before the training, these checks compare the model's parameters, their initial values and the optimizer's
hyper-parameters with the results of the suite's own steps. ``checks/steps.py`` compares what the steps compute.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flagperf_driver.pytorch import sharding
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.distributed import named
from flagperf_driver.pytorch.steps import PyTorchSteps

MODEL = ("create_model", "convert_model", "model_to_fp16", "compile_model", "model_to_ddp")
"""The steps that make the model."""
_RETURN_VALUES = {
    **dict.fromkeys(MODEL, "a model"),
    "create_optimizer": "an optimizer",
    "prepare_batch": "a batch",
    "calculate_loss": "a loss",
}
"""The steps that must not return None, each with its return value."""
_IMPLEMENTATION_KEYS = frozenset(["params", "foreach", "fused", "capturable", "differentiable"])
"""Keys of an optimizer's group that select its implementation, not its results."""
_COMPARED_VALUES = 256
"""The number of values compared in each parameter."""
_TOLERANCE = 2.0**-7
"""Allowed difference, relative to the largest value: a vendor may lower the precision."""
_MAX_LISTED = 5


class AdaptationError(ValueError):
    """A vendor's step changed the suite's model or optimizer."""


def replaced(steps: PyTorchSteps, own: PyTorchSteps) -> tuple[str, ...]:
    """Return the names of the suite's steps that a vendor replaced."""
    names = sorted(item.name for item in fields(PyTorchSteps))
    return tuple(name for name in names if getattr(steps, name) is not getattr(own, name))


# -- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """The properties of a parameter that a vendor must keep: all but its precision and device."""

    shape: tuple[int, ...]
    trained: bool
    values: Tensor


Structure = Mapping[str, Parameter]


def create_model(ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps) -> tuple[nn.Module, Structure]:
    """Return the model, and the structure to check after the other steps; no structure if all steps are the suite's.

    The parameters of a vendor's model get the initial values of the suite's model.
    """
    model = own.create_model(ctx)
    by_vendor = set(replaced(steps, own)).intersection(MODEL)
    original = _structure(ctx, model) if by_vendor else {}
    if steps.create_model is own.create_model:
        return model, original
    theirs = steps.create_model(ctx)
    _raise_problems(
        "the model", _differences(original, _structure(ctx, theirs, values=False), values=False), ["create_model"]
    )
    if not sharding.is_on_meta(theirs):
        copy_values(ctx, model, theirs)
    return theirs, original


def check_model(
    ctx: PyTorchContext, model: nn.Module, original: Structure, steps: PyTorchSteps, own: PyTorchSteps
) -> None:
    """Raise an error if the model's parameters differ from those of the suite's model."""
    if original:
        by_vendor = [name for name in replaced(steps, own) if name in MODEL]
        without = [name for name, value in named(model.named_parameters()) if value.is_meta]
        _raise_problems("the model", (f"{name} is still on the meta device" for name in without), by_vendor)
        _raise_problems("the model", _differences(original, _structure(ctx, model), values=True), by_vendor)


def _structure(ctx: PyTorchContext, model: nn.Module, *, values: bool = True) -> dict[str, Parameter]:
    return {
        name: Parameter(
            tuple(value.shape),
            value.requires_grad,
            _sample(sharding.initial_value(ctx, model, name, value)) if values else torch.empty(0),
        )
        for name, value in named(model.named_parameters())
    }


def _sample(value: Any) -> Tensor:
    """Return a copy of some values, evenly spaced."""
    flat = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().reshape(-1)
    # An odd step: with an even step and rows of even length, some columns would never be compared.
    return flat[:: flat.numel() // _COMPARED_VALUES | 1].cpu().to(torch.float64, copy=True)


def _differences(original: Structure, vendors: Structure, *, values: bool) -> Iterator[str]:
    for name, expected in original.items():
        got = vendors.get(name)
        if got is None:
            yield f"{name} is missing"
        elif got.shape != expected.shape:
            yield f"{name} has shape {_shape(got.shape)}, expected {_shape(expected.shape)}"
        elif got.trained != expected.trained:
            yield f"{name} is {_trained(got.trained)}, expected {_trained(expected.trained)}"
        elif values and not _close(got.values, expected.values):
            yield f"{name} does not have the suite's initial values"
    yield from (f"{name} is not a parameter of the suite's model" for name in vendors if name not in original)


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _trained(trained: bool) -> str:
    return "trained" if trained else "frozen"


def _close(values: Tensor, expected: Tensor) -> bool:
    """Return True if the values are equal up to rounding."""
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((values - expected).abs() <= _TOLERANCE * largest).all())


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


# -- the optimizer -----------------------------------------------------------------------------------------


def check_optimizer(
    ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps, model: nn.Module, optimizer: Optimizer
) -> dict[str, list[str]]:
    """Raise an error if the hyper-parameters differ from the suite's; return a different class as a deviation."""
    if steps.create_optimizer is own.create_optimizer:
        return {}
    standard = own.create_optimizer(ctx, model)
    problems = [*_missing_parameters(model, optimizer), *_different_settings(model, optimizer, standard)]
    _raise_problems("the optimizer", problems, ["create_optimizer"])
    theirs, ours = type(optimizer).__name__, type(standard).__name__
    return {} if theirs == ours else {"optimizer class": [theirs, ours]}


def _missing_parameters(model: nn.Module, optimizer: Optimizer) -> Iterator[str]:
    """Report the trained parameters that the optimizer does not update.

    Of an optimizer with copies of the parameters (fp32, flat) only the total size is compared.
    """
    held = [value for group in optimizer.param_groups for value in group["params"]]
    trained = {name: value for name, value in named(model.named_parameters()) if value.requires_grad}
    known = set(map(id, held))
    missing = [name for name, value in trained.items() if id(value) not in known]
    if missing and sum(value.numel() for value in held) < sum(value.numel() for value in trained.values()):
        yield from (f"{name} is missing" for name in missing)


def _different_settings(model: nn.Module, optimizer: Optimizer, standard: Optimizer) -> Iterator[str]:
    """Compare each parameter's learning rate, decay and so on, for the keys that both optimizers have."""
    theirs, ours = _settings(optimizer), _settings(standard)
    for name, value in named(model.named_parameters()):
        got, expected = theirs.get(id(value), {}), ours.get(id(value), {})
        for key in got.keys() & expected.keys() - _IMPLEMENTATION_KEYS:
            if not _same(got[key], expected[key]):
                yield f"{key} of {name} is {got[key]}, expected {expected[key]}"


def _settings(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    return {id(value): group for group in optimizer.param_groups for value in group["params"]}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-6)
    except (TypeError, ValueError):
        return bool(left == right)


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


def _raise_problems(what: str, problems: Iterable[str], steps: Sequence[str]) -> None:
    listed = list(problems)
    if listed:
        more = f"; and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
        raise AdaptationError(
            f"{what} differs from the suite's: {'; '.join(listed[:_MAX_LISTED])}{more}. "
            f"The vendor's {' and '.join(steps)} may only change how {what} is computed"
        )
