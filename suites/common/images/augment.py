"""Random changes of a training picture, on the host: RandAugment, TrivialAugment, an erased rectangle.

The libraries' changes run on Pillow's pictures, where they are faster than on tensors. All changes depend only on the
generator that is passed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandAugment, TrivialAugmentWide

from common.images.folders import ImagesError
from common.shares import Array

Picture: TypeAlias = Image.Image
Change: TypeAlias = Callable[[Picture, np.random.Generator], Picture]

OF_TIMM = re.compile(r"rand(-(m|n|inc|mmax)\d+|-(p|mstd)\d+(\.\d+)?)+")
ERASED_AREA = (0.02, 0.33)
ERASED_ASPECT = (0.3, 3.3)


def create(name: str, size: int, mean: tuple[float, ...], resampling: Image.Resampling) -> Change:
    """Return the change that a config names, for pictures of size x size."""
    transform: Callable[[Picture], Picture]
    if name == "randaugment":
        transform = RandAugment(interpolation=InterpolationMode.BILINEAR)
    elif name == "trivialaugment":
        transform = TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)
    else:
        transform = _of_timm(name, size, mean, resampling)

    def change(picture: Picture, rng: np.random.Generator) -> Picture:
        with _seeded(int(rng.integers(2**32))):
            return transform(picture)

    return change


def _of_timm(
    name: str, size: int, mean: tuple[float, ...], resampling: Image.Resampling
) -> Callable[[Picture], Picture]:
    if not OF_TIMM.fullmatch(name):  # timm itself ignores a section that it does not know
        raise ImagesError(
            f"augment={name!r}: unknown; expected None, 'randaugment', 'trivialaugment' or a RandAugment of timm, "
            "such as 'rand-m9-mstd0.5-inc1'"
        )
    from timm.data.auto_augment import rand_augment_transform

    fill = tuple(round(255 * value) for value in mean)
    options = {"translate_const": int(size * 0.45), "img_mean": fill, "interpolation": resampling}
    transform = rand_augment_transform(name, options)
    for operation in transform.ops:
        if operation.name.startswith("Posterize"):
            operation.level_fn = _at_least_one_bit(operation.level_fn)
    changed: Callable[[Picture], Picture] = transform
    return changed


def _at_least_one_bit(level: Callable[[float, object], tuple[int, ...]]) -> Callable[[float, object], tuple[int, ...]]:
    """Limit timm's strongest level: it keeps 0 bits of a colour, which Pillow refuses."""
    return lambda magnitude, options: (max(1, *level(magnitude, options)),)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that the libraries use, and restore them: the training uses them too."""
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


class Eraser:
    """Erases a rectangle of a share of the pictures: in the mean colour, or with normal noise in each pixel."""

    def __init__(self, share: float, mean: tuple[float, ...], deviation: tuple[float, ...], *, noise: bool) -> None:
        self._share, self._noise = share, noise
        self._mean, self._deviation = 255 * np.array(mean), 255 * np.array(deviation)

    def __call__(self, pixels: Array, rng: np.random.Generator) -> Array:
        if rng.random() >= self._share or (box := self._box(*pixels.shape[:2], rng)) is None:
            return pixels
        top, bottom, left, right = box
        values = np.broadcast_to(self._mean, (bottom - top, right - left, 3))
        if self._noise:
            values = values + self._deviation * rng.standard_normal(values.shape)
        erased = pixels.copy()
        erased[top:bottom, left:right] = values.round().clip(0, 255)
        return erased

    def _box(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int] | None:
        for _ in range(10):
            area = height * width * rng.uniform(*ERASED_AREA)
            aspect = math.exp(rng.uniform(*map(math.log, ERASED_ASPECT)))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
                return top, top + h, left, left + w
        return None
