"""Handwritten digits, the real images of the small scale: 1437 for training, 360 others for evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from common.images import Array, MemoryImages

FILE = Path(__file__).with_name("digits.npz")
CLASSES = 10
TRAIN, EVAL = 1437, 360
SPLIT_SEED = 7  # the same split for all rounds: the evaluation does not depend on the round's seed


def split() -> tuple[Array, Array]:
    """Return the indices of the training samples and of the evaluation samples."""
    order = np.random.default_rng(SPLIT_SEED).permutation(TRAIN + EVAL)
    return order[:TRAIN], order[TRAIN:]


def load(size: int, *, train: bool) -> MemoryImages:
    """Return one part as images of size x size with three equal channels."""
    with np.load(FILE) as file:
        chosen = split()[0 if train else 1]
        pixels, labels = file["x"][chosen], file["y"][chosen].astype(np.int64)
    grey = torch.from_numpy(pixels).float().mul_(255 / 16)[:, None]  # the file has values from 0 to 16
    resized = functional.interpolate(grey, size=(size, size), mode="bilinear", align_corners=False)
    colour = resized.round_().to(torch.uint8).expand(-1, 3, -1, -1)
    return MemoryImages(colour.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels))
