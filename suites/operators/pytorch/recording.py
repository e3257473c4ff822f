"""The operators of a step: each call with its arguments, in order, so that it can be repeated and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from inputs import NVFP4, TensorSpec
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from flagperf_driver.pytorch.traffic import Traffic, tensors

_NOT_RECORDED = ("profiler", "record_stream")
"""Namespaces and functions that only tell profilers and the allocator something."""
FUNCTIONAL = "_c10d_functional"
"""The collective operations that return a tensor to wait for; the others return a handle."""
COLLECTIVES = ("c10d", FUNCTIONAL)
WAITING = "wait_tensor"
_DISABLED = torch._C._disabled_torch_dispatch_impl


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among those of the step."""

    number: int


@dataclass
class Operator:
    """All calls of a function with arguments of the same types, shapes and layouts."""

    function: Any
    args: Any
    """With a TensorSpec in the place of each tensor."""
    kwargs: dict[str, Any]
    flops: float
    """Of one call."""
    bytes: float
    is_view: bool
    """It returns parts of its arguments: nothing is computed or copied."""
    calls: int = 0
    parts: list[str] = field(default_factory=list)
    """The parts of the step with such calls."""

    @property
    def name(self) -> str:
        """The function's name without its namespace and overload, as in mm."""
        return str(self.function.name()).rpartition("::")[2].partition(".")[0]

    @property
    def is_collective(self) -> bool:
        return self.function.namespace in COLLECTIVES

    @property
    def is_alone(self) -> bool:
        """Whether it does work of its own, unlike a view and waiting for a collective operation."""
        return not self.is_view and self.name != WAITING


@dataclass
class Call:
    """A call of a step, with a Slot in the place of each tensor."""

    function: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    results: list[Slot]
    operator: int | None
    """The place of its operator; None for a view that the step made without an operator."""
    last: list[Slot] = field(default_factory=list)
    """The tensors that no later call needs."""


@dataclass
class Recording:
    """The calls of one step, in order."""

    calls: list[Call]
    operators: list[Operator]
    given: dict[int, Tensor]
    """The tensors that existed before, by their slots, such as weights."""
    slots: int
    sizes: list[tuple[Any, int]]
    """The storages of these tensors with their bytes: a step may give a storage memory only for a time."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that are called while it is active."""

    def __init__(self, part: Callable[[], str]) -> None:
        super().__init__()
        self._part, self._traffic = part, Traffic()
        self._calls: list[Call] = []
        self._operators: dict[Any, int] = {}
        self._found: list[Operator] = []
        self._given: dict[int, Tensor] = {}
        self._slots = 0
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._storages: dict[int, tuple[StorageWeakRef, dict[Any, Slot]]] = {}
        """By storage: the slots of the tensors in it, by their place and layout."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind is not Tensor and kind.__torch_dispatch__ is not _DISABLED for kind in types):
            return NotImplemented  # a tensor of parts calls the operators of its parts
        if not {function.namespace, function._schema.name.rpartition("::")[2]}.isdisjoint(_NOT_RECORDED):
            return function(*args, **kwargs)
        slots = mapped(self._slot, args), mapped(self._slot, kwargs)
        specs = mapped(TensorSpec.of, args), mapped(TensorSpec.of, kwargs)
        key = function, *map(_key, specs)
        if is_new := key not in self._operators:
            mapped(TensorSpec.observe, specs, TensorSpec)
        before = self._traffic.bytes
        with self._traffic:
            result = function(*args, **kwargs)
        if is_new:
            self._operators[key] = len(self._found)
            moved, flops = float(self._traffic.bytes - before), flops_of(function, args, kwargs, result)
            self._found.append(Operator(function, *specs, flops, moved, _is_view(function, args, result)))
        operator = self._found[self._operators[key]]
        operator.calls += 1
        if (part := self._part()) not in operator.parts:
            operator.parts.append(part)
        results = [self._define(tensor) for tensor in returned(result)]
        self._calls.append(Call(function, *slots, results, self._operators[key]))
        return result

    def recording(self) -> Recording:
        """Return what was recorded, with the last use of each tensor."""
        used: set[int] = set(self._given)
        for call in reversed(self._calls):
            slots = [*call.results]
            mapped(slots.append, [call.args, call.kwargs], Slot)
            call.last = [slot for slot in dict.fromkeys(slots) if slot.number not in used]
            used.update(slot.number for slot in slots)
        return Recording(self._calls, self._found, self._given, self._slots, [*self._sizes.values()])

    # -- tensors -------------------------------------------------------------------------------------------

    def _slot(self, tensor: Tensor) -> Slot:
        """Return the slot of an argument.

        Autograd keeps tensors in other objects, so a tensor is known by its place in memory.
        """
        storage, layout = tensor.untyped_storage(), _layout(tensor)
        weak, slots = self._storages.get(storage._cdata, (None, {}))
        if weak is None or weak.expired():
            slot = self._define(tensor)
            self._given[slot.number] = tensor.detach()
            self._sizes[storage._cdata] = storage, storage.nbytes()
            return slot
        if layout not in slots:
            if any(slot.number in self._given for slot in slots.values()):
                self._given[self._slots] = tensor.detach()
                return self._define(tensor)
            base = next(iter(slots.values()))
            self._calls.append(Call(view_of, (base, *layout), {}, [self._define(tensor)], None))
        return slots[layout]

    def _define(self, tensor: Tensor) -> Slot:
        """Return a new slot for a tensor, or the one of a tensor that is changed in place."""
        storage = tensor.untyped_storage()
        weak, slots = self._storages.get(storage._cdata, (None, {}))
        if weak is None or weak.expired():
            slots = {}
            self._storages[storage._cdata] = StorageWeakRef(storage), slots
        slot = Slot(self._slots)
        self._slots += 1
        slots[_layout(tensor)] = slot
        return slot


def view_of(base: Tensor, dtype: torch.dtype, shape: Any, stride: Any, offset: int) -> Tensor:
    """Return a tensor of other layout in the memory of another one."""
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, shape, stride)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()


def mapped(change: Callable[[Any], Any], value: Any, kind: type = Tensor) -> Any:
    """Return nested lists and dictionaries with each value of a kind replaced."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, item, kind) for item in value)
    if isinstance(value, dict):
        return {name: mapped(change, item, kind) for name, item in value.items()}
    return value


def returned(result: Any) -> list[Tensor]:
    """Return the tensors that a function returned, which may be a tensor, nothing, or nested lists."""
    return list(tensors([result]))


def _key(value: Any) -> Any:
    """Return what tells arguments apart: of a tensor its type and layout, of an object of torch's only its type."""
    if isinstance(value, TensorSpec):
        return value.layout
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    return value if isinstance(value, (int, float, str, torch.dtype)) else str(type(value))


def _is_view(function: Any, args: Any, result: Any) -> bool:
    if function._schema.is_mutable or function.namespace in COLLECTIVES:
        return False
    given = {tensor.untyped_storage()._cdata for tensor in tensors(list(args))}
    results = [tensor.untyped_storage()._cdata for tensor in returned(result)]
    return bool(results) and given.issuperset(results)


# -- work ------------------------------------------------------------------------------------------------------


def flops_of(function: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Return the FLOPs of products and of attention; 0 for other functions.

    Attention to the tokens before has half of the products.
    """
    packet = function._overloadpacket
    count = flop_registry.get(packet, _UNCOUNTED.get(str(packet)))
    if count is None:
        return 0.0
    flops = float(count(*args, **kwargs, out_val=result))
    names = [argument.name for argument in function._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return flops / 2 if given.get("is_causal") is True else flops


def _product(rows: Tensor, weights: Tensor, *_: Any, **__: Any) -> int:
    """Multiply each row by one matrix, that of its group; an element of packed nvfp4 is two numbers."""
    numbers = 2 if rows.dtype is NVFP4 else 1
    return 2 * numbers * math.prod(rows.shape) * weights.shape[-1]


_UNCOUNTED = dict.fromkeys(("aten._grouped_mm", "aten._scaled_mm_v2"), _product)
"""Products that torch counts as nothing."""
