"""Digests of the weights that a rank holds: of what other ranks hold too, and of what no other rank holds."""

from __future__ import annotations

import hashlib
import math
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
        part = _part(value) if hasattr(value, "to_local") else WHOLE
        sums.setdefault(part, {})[name] = _checksum(_local(value))
    return {part: _digest(of_parameters) for part, of_parameters in sums.items()}


class AtRest:
    """Watches the weights that no other rank holds: from one update to the next, no bit of them may change.

    Nothing waits for the device until ``changed`` reads from it.
    """

    def __init__(self, model: nn.Module, ranks: int) -> None:
        own = {name: weight for name, weight in model.named_parameters() if _ranks_of(weight) == ranks}
        self._names, self._weights = list(own), list(own.values())
        self._after: Tensor | None = None
        self._steps = torch.zeros(len(own), dtype=torch.long, device=next(model.parameters()).device)
        """The first step during which each weight changed; 0 for none."""

    def before_update(self, step: int) -> None:
        """Compare the weights with those after the last update; ``step`` trained with them, and updates them now."""
        if self._after is not None:
            changed = self._sums() != self._after
            self._steps = torch.where((self._steps == 0) & changed, step, self._steps)

    def after_update(self) -> None:
        if self._weights:
            self._after = self._sums()

    def changed(self) -> tuple[str, int] | None:
        """Return the first weight that changed, and during which step."""
        found = [(step, name) for step, name in zip(self._steps.tolist(), self._names) if step]
        return min(found)[::-1] if found else None

    def _sums(self) -> Tensor:
        return torch.stack([_checksum(_local(weight.detach())) for weight in self._weights])


def _local(value: Any) -> Tensor:
    own: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return own


def _divided(value: Any) -> list[int]:
    """Return the dimensions of the mesh along which a parameter is divided."""
    return [dim for dim, placement in enumerate(value.placements) if not placement.is_replicate()]


def _ranks_of(value: Any) -> int:
    """Return among how many ranks a parameter is divided."""
    return math.prod(value.device_mesh.size(dim) for dim in _divided(value)) if hasattr(value, "to_local") else 1


def _part(value: Any) -> str:
    mesh = value.device_mesh
    names, places = mesh.mesh_dim_names, mesh.get_coordinate()
    return ", ".join(f"{names[dim]} {places[dim]}" for dim in _divided(value)) or WHOLE


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
