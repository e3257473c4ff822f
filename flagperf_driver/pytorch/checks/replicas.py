"""A digest of the weights that all replicas of a model hold."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by the size of an element."""
_PART = 1 << 22
"""The number of elements in one operation, which limits the memory."""


def digest(model: nn.Module) -> str:
    """Return a digest of the parameters' bits, equal on all ranks if all copies of each part are; every rank calls it.

    The device adds the bits up, because copying all weights to the host takes longer than a step. Parts of a parameter
    that ranks share are added up over these ranks.
    """
    whole = hashlib.sha256()
    sums: dict[tuple[Any, ...], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        whole.update(name.encode() + b"\0")
        value: Any = parameter.detach()
        groups: tuple[Any, ...] = ()
        if hasattr(value, "to_local"):
            divided = [dim for dim, placement in enumerate(value.placements) if not placement.is_replicate()]
            groups = tuple(value.device_mesh.get_group(dim) for dim in divided)
            value = value.to_local()
        sums.setdefault(groups, []).append(_checksum(value))
    for groups, of_parameters in sums.items():
        total = torch.stack(of_parameters)
        for group in groups:
            dist.all_reduce(total, group=group)
        whole.update(repr(total.tolist()).encode())
    return whole.hexdigest()


def _checksum(value: Tensor) -> Tensor:
    """Return a sum of the elements' bits that depends on each bit and its place."""
    total, place = torch.zeros((), dtype=torch.long, device=value.device), 1
    for part in value.reshape(-1).view(_INTEGERS[value.element_size()]).split(_PART):
        bits = part.long()
        places = torch.arange(place, place + 2 * len(bits), 2, device=bits.device)
        total += (bits * places).sum()
        place += 2 * len(bits)
    return total
