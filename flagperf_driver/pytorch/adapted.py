"""What a vendor's own steps must leave as it is, checked where they replaced something, before it is trained on.

The suite's own steps are the measure: its model's parameters and their first values, its optimizer, its batches, its
loss. A vendor's code runs in this process and could get round all of it; what is caught here is what goes wrong
without anybody meaning it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.steps import Batch, Context, Steps

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
_NEAR = 0.01
_TOLD = 5
_RATE = 0.05


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


def _close(found: Tensor, wanted: Tensor, *, rounded: bool = True) -> bool:
    """Up to a rounding; labels and words are whole numbers, which have none."""
    most = float(wanted.abs().max()) if rounded and wanted.numel() else 0.0
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
    _refuse("the optimizer", problems or _goes_elsewhere(ctx, steps, own), ["create_optimizer"])
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


def _goes_elsewhere(ctx: Context, steps: Steps, own: Steps) -> Iterator[str]:
    """What it is called proves nothing: three steps of a small layer must end where the suite's own do."""
    try:
        tried = _tried(ctx, steps)
    except Exception as error:  # a vendor's code: told with why it was called, and raised
        raise AdaptationError(
            "the vendor's own create_optimizer is compared with the suite's on a small layer, nn.Linear(32, 16), and "
            f"cannot be: {type(error).__name__}: {error}"
        ) from error
    for name, found, wanted in zip(("weight", "bias"), tried, _tried(ctx, own)):
        apart, way = float((found - wanted).norm()), float(wanted.norm())
        if not apart <= _NEAR * way:
            yield (
                f"it is no {ctx.config.optimizer}: in three steps of a small layer its {name} comes to lie "
                f"{apart / way if way else math.inf:.0%} of the way off the suite's"
            )


def _tried(ctx: Context, steps: Steps) -> list[Tensor]:
    """How far it moves a layer; nothing is drawn from the rank's own random numbers."""
    draws = torch.Generator().manual_seed(1)
    layer = nn.utils.skip_init(nn.Linear, 32, 16)
    start = [torch.randn(value.shape, generator=draws) for value in layer.parameters()]
    with torch.no_grad():
        for value, first in zip(layer.parameters(), start):
            value.copy_(first)
    layer.to(ctx.device)
    optimizer = steps.create_optimizer(ctx, layer)
    for group in optimizer.param_groups:
        group["lr"] = _RATE  # a small one would drown in roundings
    for _ in range(3):
        for value in layer.parameters():
            value.grad = (0.01 * torch.randn(value.shape, generator=draws)).to(ctx.device)
        optimizer.step()
    return [value.detach().cpu() - first for value, first in zip(layer.parameters(), start)]


# -- each step ---------------------------------------------------------------------------------------------


def checked(name: str, theirs: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """A vendor's step, which must give something; on the first batch, what the suite's own does."""
    checks: dict[str, Callable[..., Any]] = {"prepare_batch": _compare_batches, "calculate_loss": _compare_losses}
    first = _giving(name, theirs) if name in _GIVEN else theirs
    if name not in checks:
        return first
    once = [functools.partial(checks[name], first, own)]

    def compared(*arguments: Any) -> Any:
        return (once.pop() if once else theirs)(*arguments)

    return compared


def _giving(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """One that ends without giving what it makes is told so, and not what lacks it."""

    @functools.wraps(theirs)
    def given(*arguments: Any) -> Any:
        found = theirs(*arguments)
        if found is None:
            raise AdaptationError(
                f"the vendor's own {name} gives None, wanted is {_GIVEN[name]}: it must return what it made"
            )
        return found

    return given


@contextlib.contextmanager
def _undrawn(device: torch.device) -> Iterator[None]:
    """What is drawn here is drawn once more afterwards: both draw the same, and the training what it always does."""
    host, its = torch.get_rng_state(), devices.random_state(device)
    yield
    torch.set_rng_state(host)
    if its is not None:
        devices.backend(device).set_rng_state(its)


def _compare_batches(theirs: Callable[..., Any], own: Callable[..., Any], ctx: Context, batch: Batch) -> Batch:
    with _undrawn(ctx.device):
        wanted = list(devices.tensors(own(ctx, batch)))
    prepared = theirs(ctx, batch)
    found = list(devices.tensors(prepared))
    shapes = [[_shape(tensor.shape) for tensor in tensors] for tensors in (found, wanted)]
    if shapes[0] != shapes[1]:
        told = " is {}, the suite's is {}".format(*("; ".join(each) or "nothing" for each in shapes))
        _refuse("the prepared batch", ["it" + told], ["prepare_batch"])
    other = [
        f"tensor {number} ({shape}) holds other values than the suite's"
        for number, (one, suites, shape) in enumerate(zip(found, wanted, shapes[0]), 1)
        if not _close(_sample(one), _sample(suites), rounded=suites.is_floating_point())
    ]
    _refuse("the prepared batch", other, ["prepare_batch"])
    return prepared


def _compare_losses(
    theirs: Callable[..., Any], own: Callable[..., Any], ctx: Context, model: nn.Module, batch: Batch
) -> Tensor:
    """Without dropout, since no two kernels draw it alike, and not compiled for this one time."""
    bare = distributed.unwrap(model)
    model.eval()
    with torch.no_grad(), _eager():
        found, wanted = (_drawn_alike(step, ctx, bare, batch) for step in (theirs, own))
    model.train()
    # What autocast made here of the weights has no gradients.
    torch.clear_autocast_cache()
    if not abs(found - wanted) <= _NEAR * abs(wanted):
        _refuse("the loss", [f"of the first batch it is {found:g}, the suite's is {wanted:g}"], ["calculate_loss"])
    loss: Tensor = theirs(ctx, model, batch)
    return loss


def _drawn_alike(step: Callable[..., Any], ctx: Context, model: nn.Module, batch: Batch) -> float:
    with _undrawn(ctx.device):
        return float(step(ctx, model, batch))


def _eager() -> Any:
    stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")


def _refuse(what: str, problems: Any, by: Sequence[str]) -> None:
    found = list(problems)
    if found:
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        raise AdaptationError(
            f"{what} is not the suite's: {'; '.join(found[:_TOLD])}{more}. "
            f"The vendor's own {' and '.join(by)} may change how it is computed, not what it is"
        )
