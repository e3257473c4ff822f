"""How the ranks of a training share the model and the samples: the config's ``parallel``, as a table of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Mapping

DDP, FSDP = "ddp", "fsdp"
AXES = ("replicate", "shard", "expert", "tensor")
"""The axes of the table; neighbouring ranks differ in the last one first."""
OF_SUITE = ("expert", "tensor")
"""The axes that a suite must support; its suite.toml lists them."""
_REST = -1
_EXAMPLE = "shard=4,tensor=2"


class ParallelError(ValueError):
    """A value of ``parallel`` that does not fit the ranks."""


@dataclass(frozen=True)
class Parallel:
    """The number of ranks on each axis; their product is the number of ranks."""

    replicate: int = 1
    """Copies of the model."""
    shard: int = 1
    """Ranks that hold a part each of every weight, and gather them for a layer's computation."""
    expert: int = 1
    """Ranks that have some of the experts each, and exchange the tokens; they share all other weights as ``shard``."""
    tensor: int = 1
    """Ranks that compute a part each of every layer, for the same samples."""

    @classmethod
    def of(cls, value: Any, ranks: int) -> Parallel:
        """Return the sizes for a value of the config key; raise an error if it does not fit this number of ranks."""
        table = {DDP: {"replicate": _REST}, FSDP: {"shard": _REST}}.get(value) if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            raise ParallelError(f"expected {DDP}, {FSDP} or a table, as in {_EXAMPLE}; got {value!r}")
        for axis, size in table.items():
            if axis not in AXES:
                raise ParallelError(f"unknown axis {axis!r}; choose from {', '.join(AXES)}")
            if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != _REST):
                raise ParallelError(f"{axis} is {size!r}; expected a whole number from 1, or -1 for the rest")
        return cls(**_complete(table, ranks))

    @property
    def ranks(self) -> int:
        return self.data_ranks * self.tensor

    @property
    def data_ranks(self) -> int:
        """The number of groups of ranks that read different samples."""
        return self.replicate * self.shard * self.expert

    @property
    def without_experts(self) -> Parallel:
        """The sizes for all weights but the experts': the ranks of an expert group share them as those of ``shard``."""
        return replace(self, shard=self.shard * self.expert, expert=1)

    @property
    def of_experts(self) -> Parallel:
        """The sizes for the experts: the ranks of a tensor group have some of the experts each, too."""
        return replace(self, expert=self.expert * self.tensor, tensor=1)

    @property
    def is_sharded(self) -> bool:
        """Return True if a rank holds only parts of the weights."""
        return max(self.shard, self.expert, self.tensor) > 1

    def data_rank(self, rank: int) -> int:
        """Return the number of a rank's group; the ranks of a group read the same samples."""
        return rank // self.tensor

    def is_counted(self, rank: int) -> bool:
        """Return True for the first rank of each group: samples that a group shares count once."""
        return rank % self.tensor == 0

    @property
    def name(self) -> str:
        """The short form: ddp, fsdp, or the axes with several ranks. Equal sizes have equal names."""
        sizes = {axis: size for axis in AXES if (size := getattr(self, axis)) > 1}
        if len(sizes) < 2 and not sizes.keys() - {"replicate", "shard"}:
            return FSDP if "shard" in sizes else DDP
        return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _complete(table: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return the size of every axis; the axis of size -1, by default ``replicate``, takes the remaining ranks."""
    sizes = {axis: table.get(axis, 1) for axis in AXES}
    rest = [axis for axis, size in sizes.items() if size == _REST]
    if len(rest) > 1:
        raise ParallelError(f"{' and '.join(rest)} are -1; expected at most one axis for the remaining ranks")
    given = abs(math.prod(sizes.values()))
    sized = [f"{axis} {size}" for axis, size in sizes.items() if axis in table and size > 0]
    words = " x ".join(sized) + (f" = {given}" if len(sized) > 1 else "")
    if ranks % given:
        raise ParallelError(f"{words} does not divide {ranks}, the number of ranks")
    if not rest and "replicate" in table and given != ranks:
        raise ParallelError(f"{words}; expected {ranks}, the number of ranks; set replicate = -1 to use all")
    axis = rest[0] if rest else "replicate"
    return {**sizes, axis: abs(sizes[axis]) * (ranks // given)}
