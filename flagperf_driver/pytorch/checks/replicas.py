"""Digests of the parts of the weights that a rank holds."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

import torch
from torch import Tensor, nn

from flagperf_driver.training.checks.replicas import WHOLE

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by the size of an element."""
_PART = 1 << 22
"""The number of elements in one operation, which limits the memory."""


def digests(model: nn.Module) -> dict[str, str]:
    """Return a digest of the parameters' bits for each part of the model that this rank holds.

    A part's name is the place of the ranks that hold it, as in ``shard 0, tensor 1``. The device adds the bits up,
    because copying all weights to the host takes longer than a step.
    """
    sums: dict[str, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        part = WHOLE
        if hasattr(value, "to_local"):
            part, value = _part(value), value.to_local()
        sums.setdefault(part, {})[name] = _checksum(value)
    return {part: _digest(of_parameters) for part, of_parameters in sums.items()}


def _part(value: Any) -> str:
    mesh = value.device_mesh
    names, places = mesh.mesh_dim_names, mesh.get_coordinate()
    divided = [dim for dim, placement in enumerate(value.placements) if not placement.is_replicate()]
    return ", ".join(f"{names[dim]} {places[dim]}" for dim in divided) or WHOLE


def _digest(sums: Mapping[str, Tensor]) -> str:
    text = repr((list(sums), torch.stack(list(sums.values())).tolist()))
    return hashlib.sha256(text.encode()).hexdigest()


def _checksum(value: Tensor) -> Tensor:
    """Return a sum of the elements' bits that depends on each bit and its place."""
    total, place = torch.zeros((), dtype=torch.long, device=value.device), 1
    for part in value.reshape(-1).view(_INTEGERS[value.element_size()]).split(_PART):
        bits = part.long()
        places = torch.arange(place, place + 2 * len(bits), 2, device=bits.device)
        total += (bits * places).sum()
        place += 2 * len(bits)
    return total
