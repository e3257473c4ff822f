"""Which frames are masked, and between which frames the model must choose."""

from __future__ import annotations

import numpy as np
from common.shares import Array


def count(frames: int, share: float) -> int:
    """Return the number of masked frames: the same for all recordings of a length."""
    return round(frames * share)


def masked(frames: int, share: float, span: int, rng: np.random.Generator) -> Array:
    """Return the masked frames, in order: spans at random places, which may overlap, until there are enough."""
    wanted, chosen = count(frames, share), np.zeros(frames, bool)
    for start in rng.permutation(frames - span):
        rest = wanted - int(chosen.sum())
        if not rest:
            break
        free = start + np.flatnonzero(~chosen[start : start + span])
        chosen[free[:rest]] = True
    return np.flatnonzero(chosen)


def others(masked_frames: int, number: int, rng: np.random.Generator) -> Array:
    """Return for each masked frame some others, (masked_frames, number), as numbers among the masked frames."""
    drawn = rng.integers(0, masked_frames - 1, (masked_frames, number))
    return drawn + (drawn >= np.arange(masked_frames)[:, None])
