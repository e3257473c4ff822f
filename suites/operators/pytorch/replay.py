"""A recorded step once more: its operators alone, one after the other, with the same tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from recording import Call, Recording, Slot, mapped, returned
from torch import Tensor


def below_autograd(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let operators compute only: what autograd remembers for a backward pass is not their work."""

    @functools.wraps(function)
    def below(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return function(*args)

    return below


class Replay:
    """Calls the operators of a recorded step in its order. They read and change the weights as the step does."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @below_autograd
    def run(self, mark: Callable[[], Any]) -> list[Any]:
        """Return a mark before and one after each call of an operator."""
        recording, line = self._recording, []
        values: list[Tensor | None] = [None] * recording.slots
        for number, tensor in recording.given.items():
            values[number] = tensor
        for storage, size in recording.sizes:
            if storage.nbytes() < size:
                storage.resize_(size)
        for call in recording.calls:
            args, kwargs = _filled(call.args, values), _filled(call.kwargs, values)
            try:
                if call.operator is None:
                    result = call.function(*args, **kwargs)
                else:
                    line.append(mark())
                    result = finished(call.function(*args, **kwargs))
                    line.append(mark())
            except RuntimeError as error:
                raise RuntimeError(
                    f"{call.function} of the step cannot be repeated: {error}; expected a training whose shapes do not"
                    " depend on values, unlike those of a detector"
                ) from error
            _keep(call, result, values)
            del args, kwargs, result
        return line


def finished(result: Any) -> Any:
    """Wait for a collective operation that returned a handle; no other operator does."""
    for item in result if isinstance(result, tuple) else ():
        if isinstance(item, torch.ScriptObject):
            item.wait()
    return result


def _filled(value: Any, values: Sequence[Tensor | None]) -> Any:
    return mapped(lambda slot: values[slot.number], value, Slot)


def _keep(call: Call, result: Any, values: list[Tensor | None]) -> None:
    for slot, tensor in zip(call.results, returned(result), strict=True):
        values[slot.number] = tensor
    for slot in call.last:
        values[slot.number] = None
