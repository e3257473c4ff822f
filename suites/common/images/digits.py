"""Handwritten digits, the real images of the small scale: 1437 for training, 360 others for evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from common.images.folders import MemoryImages
from common.shares import Array

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
    grey = pixels.astype(np.float32) * np.float32(255 / 16)  # the file has values from 0 to 16
    resized = np.stack(
        [np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BILINEAR)) for one in grey]
    )
    colour = resized.round().astype(np.uint8)[..., None].repeat(3, axis=3)
    return MemoryImages(colour, labels)
