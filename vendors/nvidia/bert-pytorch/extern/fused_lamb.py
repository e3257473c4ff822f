"""LAMB over all parameters of a group, with one pass for the moments and one pass for the weights.

The standard step makes a dozen passes of ``torch._foreach_*``, each of which reads and writes whole tensors; in total
it moves 25 times the parameters' size. This step moves 10 times the size: 6 for the moments and the norms, 4 for the
weights, whose update is computed again instead of stored. Without weight decay no norms are needed, and a single pass
moves 7 times the size.

Each program of the grid computes a chunk of one parameter; a table has the addresses of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flagperf_driver.pytorch.optimizers import Lamb

BLOCK = 1024
ROUNDS = 16
CHUNK = BLOCK * ROUNDS


@triton.jit
def _at(pointers, row):
    return tl.load(pointers + row).to(tl.pointer_type(tl.float32))


@triton.jit
def _update(first, second, weight, correction, root, epsilon, decay):
    return (first / correction) / (tl.sqrt(second) / root + epsilon) + decay * weight


@triton.jit
def _advance(
    pointers, sizes, owners, offsets, partial, tensors, rest1, beta2, rest2, correction, root, epsilon, decay, rate,
    norms: tl.constexpr, block: tl.constexpr, rounds: tl.constexpr,
):  # fmt: skip
    """Update the moments; then sum the squares for the norms, or without norms apply the update."""
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    size = tl.load(sizes + owner)
    weights, gradients = _at(pointers, owner), _at(pointers, tensors + owner)
    firsts, seconds = _at(pointers, 2 * tensors + owner), _at(pointers, 3 * tensors + owner)
    start = tl.load(offsets + program)
    of_weights = tl.zeros((block,), tl.float32)
    of_updates = tl.zeros((block,), tl.float32)
    for number in range(rounds):
        place = start + number * block + tl.arange(0, block)
        inside = place < size
        gradient = tl.load(gradients + place, mask=inside, other=0.0)
        first = tl.load(firsts + place, mask=inside, other=0.0)
        second = tl.load(seconds + place, mask=inside, other=0.0)
        weight = tl.load(weights + place, mask=inside, other=0.0)
        first = first + rest1 * (gradient - first)
        second = beta2 * second + rest2 * gradient * gradient
        tl.store(firsts + place, first, mask=inside)
        tl.store(seconds + place, second, mask=inside)
        update = _update(first, second, weight, correction, root, epsilon, decay)
        if norms:
            of_weights += weight * weight
            of_updates += tl.where(inside, update * update, 0.0)
        else:
            tl.store(weights + place, weight - rate * update, mask=inside)
    if norms:
        tl.store(partial + 2 * program, tl.sum(of_weights, axis=0))
        tl.store(partial + 2 * program + 1, tl.sum(of_updates, axis=0))


@triton.jit
def _apply(
    pointers, sizes, owners, offsets, begins, partial, tensors, correction, root, epsilon, decay, rate,
    block: tl.constexpr, rounds: tl.constexpr,
):  # fmt: skip
    """Apply the update, scaled by |weights| / |update| of the whole parameter, or by 1 if either is zero."""
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    size = tl.load(sizes + owner)
    end = tl.load(begins + owner + 1)
    of_weights = tl.zeros((block,), tl.float32)
    of_updates = tl.zeros((block,), tl.float32)
    for begin in range(tl.load(begins + owner), end, block):
        chunk = begin + tl.arange(0, block)
        of_weights += tl.load(partial + 2 * chunk, mask=chunk < end, other=0.0)
        of_updates += tl.load(partial + 2 * chunk + 1, mask=chunk < end, other=0.0)
    weight_norm, update_norm = tl.sqrt(tl.sum(of_weights, axis=0)), tl.sqrt(tl.sum(of_updates, axis=0))
    nonzero = (weight_norm > 0) & (update_norm > 0)
    trust = tl.where(nonzero, weight_norm / tl.where(nonzero, update_norm, 1.0), 1.0)
    weights = _at(pointers, owner)
    firsts, seconds = _at(pointers, 2 * tensors + owner), _at(pointers, 3 * tensors + owner)
    start = tl.load(offsets + program)
    for number in range(rounds):
        place = start + number * block + tl.arange(0, block)
        inside = place < size
        first = tl.load(firsts + place, mask=inside, other=0.0)
        second = tl.load(seconds + place, mask=inside, other=0.0)
        weight = tl.load(weights + place, mask=inside, other=0.0)
        update = _update(first, second, weight, correction, root, epsilon, decay)
        tl.store(weights + place, weight - rate * trust * update, mask=inside)


class FusedLamb(Lamb):
    """The standard LAMB with fused kernels; its state and checkpoints are the same."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tables: dict[int, ChunkTable] = {}

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights]
        if not all(map(_is_plain, [*weights, *gradients])):
            super()._step(group, weights)
            return
        group["steps"] = steps = group.get("steps", 0) + 1
        table = self._table(group, weights)
        tensors = [*weights, *gradients, *self._moments(weights, "exp_avg"), *self._moments(weights, "exp_avg_sq")]
        table.set_addresses([tensor.data_ptr() for tensor in tensors])
        beta1, beta2 = group["betas"]
        layout = (table.pointers, table.sizes, table.owners, table.offsets)
        scalars = (1 - beta1**steps, (1 - beta2**steps) ** 0.5, group["eps"], group["weight_decay"], group["lr"])
        grid, count, size = (table.programs,), len(weights), {"block": BLOCK, "rounds": ROUNDS}
        norms = bool(group["weight_decay"])
        _advance[grid](*layout, table.partial, count, 1 - beta1, beta2, 1 - beta2, *scalars, norms=norms, **size)
        if norms:
            _apply[grid](*layout, table.begins, table.partial, count, *scalars, **size)

    def _table(self, group: dict[str, Any], weights: list[Tensor]) -> ChunkTable:
        table = self._tables.get(id(group))
        if table is None or table.parameter_ids != list(map(id, weights)):
            self._tables[id(group)] = table = ChunkTable.make(weights)
        return table


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


@dataclass
class ChunkTable:
    """The chunk of a parameter that each program computes, and the current addresses of the tensors."""

    parameter_ids: list[int]
    sizes: Tensor
    owners: Tensor
    offsets: Tensor
    begins: Tensor
    """The first chunk of each parameter, then the number of all chunks."""
    partial: Tensor
    pointers: Tensor
    _addresses: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, weights: list[Tensor]) -> ChunkTable:
        counts = [-(-weight.numel() // CHUNK) for weight in weights]
        owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
        offsets = [number * CHUNK for count in counts for number in range(count)]
        begins = [0]
        for count in counts:
            begins.append(begins[-1] + count)
        device = weights[0].device

        def on_device(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            parameter_ids=list(map(id, weights)),
            sizes=on_device([weight.numel() for weight in weights]),
            owners=on_device(owners),
            offsets=on_device(offsets),
            begins=on_device(begins),
            partial=torch.zeros(2 * len(owners), dtype=torch.float32, device=device),
            pointers=on_device([0] * (4 * len(weights))),
        )

    @property
    def programs(self) -> int:
        return len(self.owners)

    def set_addresses(self, addresses: list[int]) -> None:
        """Copy the addresses to the device if they changed; new gradients mostly have the previous addresses."""
        if addresses != self._addresses:
            pointers = torch.tensor(addresses, dtype=torch.int64, pin_memory=self.pointers.is_cuda)
            self.pointers.copy_(pointers, non_blocking=True)
            self._addresses = addresses
