"""LAMB over all parameters of a group in one pass for the moments and one for the weights.

The standard step is a dozen passes of ``torch._foreach_*``, each of which reads and writes whole tensors: 25 times the
parameters' size goes over the memory's bus. Here it is 10 times: 6 for the moments and the norms, 4 for the weights,
whose update is computed again rather than kept. Without weight decay there is no norm, and one pass of 7 does it all.

A program of the grid has a chunk of one parameter; where the parameters lie it reads from a table.
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
    """Bring the moments forward; add up the squares for the norms, or, without them, apply the update at once."""
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
    """Take the step, scaled by |weights| / |update| of the whole parameter, 1 where either is zero."""
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
    length, way = tl.sqrt(tl.sum(of_weights, axis=0)), tl.sqrt(tl.sum(of_updates, axis=0))
    known = (length > 0) & (way > 0)
    trust = tl.where(known, length / tl.where(known, way, 1.0), 1.0)
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
    """The standard LAMB, with its state and its checkpoints."""

    def __init__(self, *how: Any, **more: Any) -> None:
        super().__init__(*how, **more)
        self._tables: dict[int, Table] = {}

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights]
        if not all(map(_is_plain, [*weights, *gradients])):
            super()._step(group, weights)
            return
        group["steps"] = steps = group.get("steps", 0) + 1
        table = self._table(group, weights)
        tensors = [*weights, *gradients, *self._moments(weights, "exp_avg"), *self._moments(weights, "exp_avg_sq")]
        table.point([tensor.data_ptr() for tensor in tensors])
        beta1, beta2 = group["betas"]
        where = (table.pointers, table.sizes, table.owners, table.offsets)
        how = (1 - beta1**steps, (1 - beta2**steps) ** 0.5, group["eps"], group["weight_decay"], group["lr"])
        grid, count, size = (table.programs,), len(weights), {"block": BLOCK, "rounds": ROUNDS}
        norms = bool(group["weight_decay"])
        _advance[grid](*where, table.partial, count, 1 - beta1, beta2, 1 - beta2, *how, norms=norms, **size)
        if norms:
            _apply[grid](*where, table.begins, table.partial, count, *how, **size)

    def _table(self, group: dict[str, Any], weights: list[Tensor]) -> Table:
        table = self._tables.get(id(group))
        if table is None or table.of != list(map(id, weights)):
            self._tables[id(group)] = table = Table.make(weights)
        return table


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


@dataclass
class Table:
    """Which chunk of which parameter each program has, and where that lies now."""

    of: list[int]
    sizes: Tensor
    owners: Tensor
    offsets: Tensor
    begins: Tensor
    """The first chunk of each parameter, and at last how many chunks there are."""
    partial: Tensor
    pointers: Tensor
    _pointed: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, weights: list[Tensor]) -> Table:
        counts = [-(-weight.numel() // CHUNK) for weight in weights]
        owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
        offsets = [number * CHUNK for count in counts for number in range(count)]
        begins = [0]
        for count in counts:
            begins.append(begins[-1] + count)
        device = weights[0].device

        def there(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            of=list(map(id, weights)),
            sizes=there([weight.numel() for weight in weights]),
            owners=there(owners),
            offsets=there(offsets),
            begins=there(begins),
            partial=torch.zeros(2 * len(owners), dtype=torch.float32, device=device),
            pointers=there([0] * (4 * len(weights))),
        )

    @property
    def programs(self) -> int:
        return len(self.owners)

    def point(self, addresses: list[int]) -> None:
        """Gradients are made anew each step, mostly where the last ones were; the host waits for no copy."""
        if addresses != self._pointed:
            told = torch.tensor(addresses, dtype=torch.int64, pin_memory=self.pointers.is_cuda)
            self.pointers.copy_(told, non_blocking=True)
            self._pointed = addresses
