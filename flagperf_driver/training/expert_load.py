"""How evenly the tokens of a mixture are divided among its experts, from the tokens of each expert by layer."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from flagperf_driver.training.trainer import Trainer

Load = Sequence[Sequence[float]]
"""Tokens of each expert, by layer."""


class ExpertLoad:
    """The load at the last log point, by the names of its figures."""

    def __init__(self) -> None:
        self.figures: dict[str, float | None] = {"expert_load": None, "expert_entropy": None}

    def update(self, trainer: Trainer) -> dict[str, float | None]:
        """Return the figures of all ranks' tokens since the last call."""
        load = trainer.expert_load()
        if load is not None:
            tokens = iter(trainer.total([tokens for layer in load for tokens in layer]))
            layers = [list(itertools.islice(tokens, len(layer))) for layer in load]
            self.figures = {"expert_load": largest(layers), "expert_entropy": entropy(layers)}
        return self.figures


def largest(load: Load) -> float:
    """Return the most tokens of an expert over the mean of its layer's experts, in the most uneven layer."""
    return max(max(layer) * len(layer) / sum(layer) for layer in load)


def entropy(load: Load) -> float:
    """Return the entropy of the experts' shares, in the most uneven layer: 1 if even, 0 if one has all tokens."""
    return min(_entropy([tokens / sum(layer) for tokens in layer]) for layer in load)


def _entropy(shares: Sequence[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share) / math.log(len(shares))
