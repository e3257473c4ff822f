"""The bytes of memory that a step reads and writes."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_NO_TRAFFIC = frozenset(f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "_local_scalar_dense"))
_ONLY_WRITES = frozenset(f"aten::{name}" for name in ("fill_", "zero_", "copy_", "random_", "bernoulli_", "normal_"))
_LOOK_UPS = frozenset(
    f"aten::{name}" for name in ("embedding", "_embedding_bag", "index", "index_select", "gather", "take")
)
"""Operators that read only some rows of their first argument."""
_WHOLE = -1


def size(tensor: Tensor) -> int:
    """Return the bytes of this rank's part of a tensor; the elements of an expanded one count once."""
    local = getattr(tensor, "_local_tensor", tensor)
    of_elements: int = local.numel() * local.element_size()
    return min(of_elements, local.untyped_storage().nbytes()) if local.layout == torch.strided else of_elements


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors within nested lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


class Traffic(TorchDispatchMode):  # type: ignore[misc]
    """Sums the bytes of what each operation reads and writes, as if nothing stayed in a cache."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        schema = getattr(function, "_schema", None)
        if schema is None:
            self.bytes += sum(map(size, tensors([args, kwargs, result])))
        elif schema.name not in _NO_TRAFFIC and not _is_view(schema):
            self.bytes += _moved(schema, args, kwargs or {}, result)
        return result


def _is_view(schema: Any) -> bool:
    return any(output.alias_info is not None and not output.alias_info.is_write for output in schema.returns)


def _moved(schema: Any, args: Any, kwargs: Any, result: Any) -> int:
    read: list[int] = []
    written: list[int] = []
    for place, argument in enumerate(schema.arguments):
        found = list(tensors(args[place] if place < len(args) else kwargs.get(argument.name)))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if changed:
            written += map(size, found)
        if not changed or not (argument.is_out or schema.name in _ONLY_WRITES):
            read += map(size, found)
    # An operation that changes its arguments may also return new tensors, and returns the changed ones again.
    outputs = [output.alias_info is None for output in schema.returns]
    new = list(result) if len(outputs) > 1 and isinstance(result, (list, tuple)) else [result]
    written += [size(tensor) for fresh, value in zip(outputs, new) if fresh for tensor in tensors(value)]
    if schema.name in _LOOK_UPS and read:
        read[0] = min(read[0], sum(written))
    return sum(read) + sum(written)


class LeastTraffic:
    """The bytes that a step must move at least, also a compiled one.

    The forward pass reads each weight once. What it keeps for the backward pass is written and read; a kept weight is
    only read. Each gradient is written once. The optimizer reads weight, gradient and its states, and writes weight and
    states.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._weights = list(model.parameters())
        self._optimizer = optimizer
        tables = (nn.Embedding, nn.EmbeddingBag)
        # The forward pass reads only some rows of a table.
        looked_up = {id(weight) for part in model.modules() if isinstance(part, tables) for weight in part.parameters()}
        self._read = sum(size(weight) for weight in self._weights if id(weight) not in looked_up)
        self._kept = self._passes = 0
        self._graph: dict[int, dict[int, int]] = {}
        """By storage: its size, and the sizes of its kept parts by their places in it."""

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Count what the graphs of forward passes keep; what a checkpoint computes again is not kept."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def _keep(self, tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = _storage(tensor)
            parts = self._graph.setdefault(storage.data_ptr(), {_WHOLE: storage.nbytes()})
            offset = tensor.storage_offset()
            parts[offset] = max(parts.get(offset, 0), size(tensor))
        return tensor.detach()  # a node that keeps its own output would keep itself alive

    def end_forward(self) -> None:
        """Add a forward pass: its weights, and what its graph keeps."""
        weights = {_storage(weight).data_ptr() for weight in self._weights}
        for place, parts in self._graph.items():
            self._kept += min(parts.pop(_WHOLE), sum(parts.values())) * (1 if place in weights else 2)
        self._graph.clear()
        self._passes += 1

    @property
    def gradients(self) -> int:
        """The bytes of the gradients of the whole model, also if this rank has a shard of it."""
        return sum(weight.numel() * weight.element_size() for weight in self._weights if weight.requires_grad)

    @property
    def bytes(self) -> int:
        trained = sum(size(weight) for weight in self._weights if weight.requires_grad)
        states = sum(map(size, tensors([*getattr(self._optimizer, "state", {}).values()])))
        return self._passes * self._read + self._kept + 4 * trained + 2 * states


def _storage(tensor: Tensor) -> Any:
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()
