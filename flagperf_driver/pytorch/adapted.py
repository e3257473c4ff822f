"""What a vendor's own steps must leave as it is, checked where they replaced something, before it is trained on.

The suite's own steps are the measure: its model's parameters and their first values, and its optimizer's
hyper-parameters. A vendor's code runs in this process and could get round all of it; what is caught here is what goes
wrong without anybody meaning it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flagperf_driver.pytorch.steps import Context, Steps

MODEL = ("create_model", "convert_model", "model_to_fp16", "compile_model", "model_to_ddp")
"""The steps that make the model."""
_GIVEN = {
    **dict.fromkeys(MODEL, "a model"),
    "create_optimizer": "an optimizer",
    "prepare_batch": "a batch",
    "calculate_loss": "a loss",
}
"""What each step gives; of the others, one gives nothing and one may."""
_WRAPPERS = frozenset(["module", "_orig_mod", "_checkpoint_wrapped_module"])
"""What wrappers put into a parameter's name."""
_HOW = frozenset(["params", "foreach", "fused", "capturable", "differentiable"])
"""Keys of an optimizer's group that say how it is computed, not what."""
_LOOKED_AT = 256
"""So many values of a parameter are compared."""
_ROUNDED = 2.0**-7
"""Of the largest value: what a lower precision may take away."""
_TOLD = 5


class AdaptationError(ValueError):
    """A vendor's step changed what is not a vendor's to change."""


def replaced(steps: Steps, own: Steps) -> tuple[str, ...]:
    """The names of the suite's own steps that a vendor's stand for."""
    names = sorted(item.name for item in fields(Steps))
    return tuple(name for name in names if getattr(steps, name) is not getattr(own, name))


# -- the model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """What of a parameter must stay: all but its precision and its place."""

    shape: tuple[int, ...]
    trained: bool
    values: Tensor


Structure = Mapping[str, Parameter]


def create_model(ctx: Context, steps: Steps, own: Steps) -> tuple[nn.Module, Structure]:
    """The model, and what it must still be when all its steps are done: nothing where they are the suite's own.

    A vendor's create_model gets the first values of the suite's own: what it draws itself does not matter.
    """
    model = own.create_model(ctx)
    made = set(replaced(steps, own)).intersection(MODEL)
    original = _structure(model) if made else {}
    if steps.create_model is own.create_model:
        return model, original
    theirs = steps.create_model(ctx)
    _refuse("the model", _differing(original, _structure(theirs), values=False), ["create_model"])
    _copy(model, theirs)
    return theirs, original


def check_model(model: nn.Module, original: Structure, steps: Steps, own: Steps) -> None:
    """An error where its parameters are not those of the suite's own."""
    if original:
        made = [name for name in replaced(steps, own) if name in MODEL]
        _refuse("the model", _differing(original, _structure(model), values=True), made)


def _structure(model: nn.Module) -> dict[str, Parameter]:
    return {
        name: Parameter(tuple(value.shape), value.requires_grad, _sample(value))
        for name, value in _named(model.named_parameters())
    }


def _named(values: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in values:
        yield ".".join(part for part in name.split(".") if part not in _WRAPPERS), value


def _sample(value: Any) -> Tensor:
    """Some of its values, from the first to the last, as they are now."""
    flat = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().reshape(-1)
    # By an odd number: rows are mostly of even length, and only their first columns would be seen.
    return flat[:: flat.numel() // _LOOKED_AT | 1].cpu().to(torch.float64, copy=True)


def _differing(original: Structure, found: Structure, *, values: bool) -> Iterator[str]:
    for name, wanted in original.items():
        got = found.get(name)
        if got is None:
            yield f"{name} is missing"
        elif got.shape != wanted.shape:
            yield f"{name} is {_shape(got.shape)}, the suite's is {_shape(wanted.shape)}"
        elif got.trained != wanted.trained:
            yield f"{name} is {_trained(got.trained)}, the suite's is {_trained(wanted.trained)}"
        elif values and not _close(got.values, wanted.values):
            yield f"{name} does not begin with the suite's values"
    yield from (f"{name} is no parameter of the suite's" for name in found if name not in original)


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _trained(trained: bool) -> str:
    return "trained" if trained else "frozen"


def _close(found: Tensor, wanted: Tensor) -> bool:
    """Whether values are equal up to a rounding."""
    most = float(wanted.abs().max()) if wanted.numel() else 0.0
    return bool(((found - wanted).abs() <= _ROUNDED * most).all())


def _copy(model: nn.Module, theirs: nn.Module) -> None:
    """Give theirs the values of the suite's own: its parameters, and the buffers that both have."""
    there = dict(_values(theirs))
    with torch.no_grad():
        for name, value in _values(model):
            if name in there and there[name].shape == value.shape:
                there[name].copy_(value)


def _values(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from _named(model.named_parameters())
    yield from _named(model.named_buffers())


# -- the optimizer -----------------------------------------------------------------------------------------


def check_optimizer(
    ctx: Context, steps: Steps, own: Steps, model: nn.Module, optimizer: Optimizer
) -> dict[str, list[str]]:
    """An error where it is another one than the suite's; where only its class is, that is told as a deviation."""
    if steps.create_optimizer is own.create_optimizer:
        return {}
    standard = own.create_optimizer(ctx, model)
    problems = [*_left_out(model, optimizer), *_set_otherwise(model, optimizer, standard)]
    _refuse("the optimizer", problems, ["create_optimizer"])
    theirs, ours = type(optimizer).__name__, type(standard).__name__
    return {} if theirs == ours else {"optimizer class": [theirs, ours]}


def _left_out(model: nn.Module, optimizer: Optimizer) -> Iterator[str]:
    """Trained parameters that it does not hold; one with copies of its own (fp32, flat) is taken by their size."""
    held = [value for group in optimizer.param_groups for value in group["params"]]
    trained = {name: value for name, value in _named(model.named_parameters()) if value.requires_grad}
    known = set(map(id, held))
    missing = [name for name, value in trained.items() if id(value) not in known]
    if missing and sum(value.numel() for value in held) < sum(value.numel() for value in trained.values()):
        yield from (f"{name} is not in it" for name in missing)


def _set_otherwise(model: nn.Module, optimizer: Optimizer, standard: Optimizer) -> Iterator[str]:
    """Learning rate, momentum, decay and so on, as far as both tell them, parameter by parameter."""
    theirs, ours = _settings(optimizer), _settings(standard)
    for name, value in _named(model.named_parameters()):
        found, wanted = theirs.get(id(value), {}), ours.get(id(value), {})
        for key in found.keys() & wanted.keys() - _HOW:
            if not _same(found[key], wanted[key]):
                yield f"{key} of {name} is {found[key]}, the suite's is {wanted[key]}"


def _settings(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    return {id(value): group for group in optimizer.param_groups for value in group["params"]}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except (TypeError, ValueError):
        return bool(one == other)


# -- each step ---------------------------------------------------------------------------------------------


def checked(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A vendor's step; one that must return something raises an error where it returns None."""
    if name not in _GIVEN:
        return theirs

    @functools.wraps(theirs)
    def given(*arguments: Any) -> Any:
        found = theirs(*arguments)
        if found is None:
            raise AdaptationError(
                f"the vendor's own {name} gives None, wanted is {_GIVEN[name]}: it must return what it made"
            )
        return found

    return given


def _refuse(what: str, problems: Iterable[str], by: Sequence[str]) -> None:
    found = list(problems)
    if found:
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        raise AdaptationError(
            f"{what} is not the suite's: {'; '.join(found[:_TOLD])}{more}. "
            f"The vendor's own {' and '.join(by)} may change how it is computed, not what it is"
        )
