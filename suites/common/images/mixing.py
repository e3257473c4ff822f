"""Mixup and CutMix: each picture of a batch is mixed with its neighbour, and so are their labels.

The reader draws how; the device mixes. Evaluation batches have no ``Mix``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from common.shares import Draw, Source

SEED = 0x311


class Mix(NamedTuple):
    """How a batch is mixed, in plain numbers: a read-back from the device is never needed."""

    share: float
    """The weight of a picture's own label."""
    box: tuple[int, int, int, int] | None
    """Top, bottom, left and right of the neighbour's pixels (CutMix); None: all pixels are mixed (Mixup)."""


@dataclass(frozen=True)
class Mixed:
    """A source of batches that are mixed; with both kinds, half of the batches have each."""

    source: Source
    size: int
    mixup: float
    """The parameter of the beta distribution of shares; 0: no Mixup."""
    cutmix: float
    seed: int

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> object:
        rng = np.random.default_rng((self.seed, SEED, draw.epoch, int(draw.indices[0])))
        return self.source[draw]._replace(mix=self._draw(rng))

    def _draw(self, rng: np.random.Generator) -> Mix:
        kinds = [kind for kind, alpha in ((self._mixup, self.mixup), (self._cutmix, self.cutmix)) if alpha]
        return kinds[int(rng.integers(len(kinds)))](rng)

    def _mixup(self, rng: np.random.Generator) -> Mix:
        return Mix(float(rng.beta(self.mixup, self.mixup)), None)

    def _cutmix(self, rng: np.random.Generator) -> Mix:
        size, half = self.size, self.size * math.sqrt(1 - rng.beta(self.cutmix, self.cutmix)) / 2
        (top, bottom), (left, right) = (
            (max(0, int(middle - half)), min(size, int(middle + half))) for middle in rng.integers(size, size=2)
        )
        # The box may reach over an edge: the share follows the pixels.
        return Mix(1 - (bottom - top) * (right - left) / size**2, (top, bottom, left, right))
