"""What the replay of a segment needs of PyTorch: how far weights lie apart, and rounding errors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ContextManager, Iterator

import torch
from torch import Tensor, nn

from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.states import Tensors, TorchStates, is_sharded, local
from flagperf_driver.training.trainer import WeightChange

_BITS = {"tf32": 2.0**-10}
"""The spacing of numbers by the config's precision, where that of the type is another."""


class TorchRepeater:
    """Repeats segments of a training with these parts; see ``Repeater``."""

    def __init__(self, ctx: PyTorchContext, model: nn.Module, states: TorchStates) -> None:
        self._ctx, self._model, self._states = ctx, model, states

    def repeat_from(self, folder: Path, steps: int) -> None:
        self._states.load(folder, steps)

    def copied_weights(self) -> Tensors:
        return {name: weight.detach().clone() for name, weight in self._states.weights().items()}

    def weight_changes(self, before: Path, after: Any) -> Iterator[WeightChange]:
        stored = self._states.stored_weights
        first, last = stored(before), stored(after) if isinstance(after, Path) else after
        for name, weight in self._states.weights().items():
            # A weight that all ranks hold is of the first rank.
            if is_sharded(weight) or self._ctx.rank == 0:
                yield _change(name, *(local(one.detach()) for one in (weight, first[name], last[name])))

    def rounding(self) -> ContextManager[None]:
        return rounding(distributed.unwrap(self._model), self._ctx.config.precision)


def _change(name: str, weight: Tensor, before: Tensor, after: Tensor) -> WeightChange:
    own, first, last = weight.float(), before.float(), after.float()
    change, theirs = own - first, last - first
    pairs = (own, own), (change, change), (theirs, theirs), (change, theirs), (own - last, own - last)
    sums = torch.stack([(one * other).sum(dtype=torch.float32) for one, other in pairs]).tolist()
    return WeightChange(name, torch.equal(weight, after), *sums)


@contextlib.contextmanager
def rounding(model: nn.Module, precision: str) -> Iterator[None]:
    """Add rounding errors to the result of each layer that has weights; no other random number changes."""
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(0)
    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]

    def round_again(_module: nn.Module, _inputs: Any, result: Any) -> Any:
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        spacing = _BITS.get(precision, torch.finfo(result.dtype).eps)
        errors = torch.empty_like(result).uniform_(-spacing, spacing, generator=generator)
        return result + result.detach() * errors

    handles = [layer.register_forward_hook(round_again) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
