"""Handwritten digits, the small scale's real images: 1437 to train on, 360 others to be judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from common.images import Array, MemoryImages

FILE = Path(__file__).with_name("digits.npz")
CLASSES = 10
TRAIN, EVAL = 1437, 360
SPLIT_SEED = 7  # one split for all rounds: what is judged does not depend on the round's seed


def split() -> tuple[Array, Array]:
    """Give the numbers of the samples to train on and of those to evaluate on."""
    order = np.random.default_rng(SPLIT_SEED).permutation(TRAIN + EVAL)
    return order[:TRAIN], order[TRAIN:]


def load(size: int, *, train: bool) -> MemoryImages:
    """Give one part as images of size x size with three equal channels."""
    with np.load(FILE) as file:
        chosen = split()[0 if train else 1]
        pixels, labels = file["x"][chosen], file["y"][chosen].astype(np.int64)
    grey = torch.from_numpy(pixels).float().mul_(255 / 16)[:, None]  # 0 to 16 in the file
    resized = functional.interpolate(grey, size=(size, size), mode="bilinear", align_corners=False)
    colour = resized.round_().to(torch.uint8).expand(-1, 3, -1, -1)
    return MemoryImages(colour.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels))
