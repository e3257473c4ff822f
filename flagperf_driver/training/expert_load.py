"""How evenly the tokens of a mixture are divided among its experts, from the tokens of each expert by layer."""

from __future__ import annotations

import itertools
import math
from typing import Callable, Sequence

Load = Sequence[Sequence[float]]
"""Tokens of each expert, by layer."""


def figures(load: Load, total: Callable[[Sequence[float]], list[float]]) -> dict[str, float]:
    """Return the figures of all ranks' tokens; ``total`` adds values over the ranks."""
    tokens = iter(total([tokens for layer in load for tokens in layer]))
    layers = [list(itertools.islice(tokens, len(layer))) for layer in load]
    return {"expert_load": largest(layers), "expert_entropy": entropy(layers)}


def largest(load: Load) -> float:
    """Return the most tokens of an expert over the mean of its layer's experts, in the most uneven layer."""
    return max(max(layer) * len(layer) / sum(layer) for layer in load)


def entropy(load: Load) -> float:
    """Return the entropy of the experts' shares, in the most uneven layer: 1 if even, 0 if one has all tokens."""
    shares = ([tokens / sum(layer) for tokens in layer] for layer in load)
    return min(-sum(share * math.log(share) for share in of if share) / math.log(len(of)) for of in shares)
