"""A digest of the weights that all replicas of a model hold."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by the size of an element."""
_PART = 1 << 22
"""The number of elements in one operation, which limits the memory."""


def digest(model: nn.Module) -> str:
    """Return a digest of the parameters' bits; of a sharded parameter, which each rank holds a part of, only the name.

    The device adds the bits up, because copying all weights to the host takes longer than a step.
    """
    whole = hashlib.sha256()
    sums: list[Tensor] = []
    for name, parameter in model.named_parameters():
        whole.update(name.encode() + b"\0")
        value: Any = parameter.detach()
        if hasattr(value, "to_local"):
            if any(placement.is_shard() for placement in value.placements):
                continue
            value = value.to_local()
        sums += _checksums(value)
    if sums:
        whole.update(repr(torch.stack(sums).tolist()).encode())
    return whole.hexdigest()


def _checksums(value: Tensor) -> list[Tensor]:
    """Return sums of the elements' bits that depend on each bit and its place."""
    sums = []
    for part in value.reshape(-1).view(_INTEGERS[value.element_size()]).split(_PART):
        bits = part.long()
        places = torch.arange(1, 2 * len(bits), 2, device=bits.device)
        sums.append((bits * places).sum())
    return sums
