"""The small scale: handwritten digits as latents, fixed random vectors as the text of each class, and a judge."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from common.images import digits
from common.shares import Array, Draw, GroupedEvalShare
from pictures import EVALUATION_SEED, TIME_STEPS, Batch, Encodings, Picture, Samples
from torch import Tensor

SIDE = 8
TEXT_SEED = 7
SHOWN = 20
"""The number of drawings that the page shows: two of each class."""
RIDGE = 10.0
"""Of the judge's regression."""


class Drawing(NamedTuple):
    """Some drawings to make: noise to begin with, the texts, and the class that each of them names."""

    noise: Tensor
    text: Tensor
    pooled: Tensor
    classes: Tensor
    numbers: Tensor
    """Of the drawings in the evaluation."""


class DigitPictures:
    """An album of the digits for the training, or of the others."""

    def __init__(self, config: Any, *, training: bool) -> None:
        self._pixels, self.classes = _pixels(training=training)
        self.texts = _texts(config)
        self.empty = self.texts[digits.CLASSES]

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, number: int) -> Picture:
        return Picture(self._pixels[number], 0.0, self.texts[self.classes[number]], number % TIME_STEPS)


def _pixels(*, training: bool) -> tuple[Array, Array]:
    """Return pixels from -1 to 1, (digits, 1, rows, columns), and classes."""
    images = digits.load(SIDE, train=training)
    return images.pixels[:, None, ..., 0].astype(np.float32) / np.float32(127.5) - 1, images.labels


def _texts(config: Any) -> list[Encodings]:
    """Return the encodings of each class and of the empty text, the same for all seeds."""
    rng, count = np.random.default_rng(TEXT_SEED), digits.CLASSES + 1
    texts = rng.standard_normal((count, config.text_tokens, config.text_size), np.float32)
    pooled = rng.standard_normal((count, config.pooled_size), np.float32)
    return [Encodings(*parts) for parts in zip(texts, pooled, strict=True)]


# -- the evaluation: the digits, then drawings -----------------------------------------------------------------


class Evaluation:
    """Batches of digits, and of drawings of each class in turn; both are the same for all seeds."""

    def __init__(self, album: DigitPictures, config: Any) -> None:
        self._album, self._digits, self._drawings = album, Samples(album, config), config.drawings

    def __len__(self) -> int:
        return len(self._album) + int(self._drawings)

    def __getitem__(self, draw: Draw) -> Batch | Drawing:
        if draw.indices[0] < len(self._album):
            return self._digits[draw]
        numbers = draw.indices - len(self._album)
        classes = numbers % digits.CLASSES
        generators = (np.random.default_rng((EVALUATION_SEED, number)) for number in draw.indices)
        noise = [rng.standard_normal((1, SIDE, SIDE), np.float32) for rng in generators]
        texts = [self._album.texts[one] for one in classes]
        text, pooled = (torch.from_numpy(np.stack(parts)) for parts in zip(*texts, strict=True))
        return Drawing(torch.from_numpy(np.stack(noise)), text, pooled, *map(torch.from_numpy, (classes, numbers)))

    def share(self, batch_size: int, rank: int, ranks: int) -> GroupedEvalShare:
        """Return a rank's share, in which no batch has digits and drawings."""
        return GroupedEvalShare(np.arange(len(self)) >= len(self._album), batch_size, rank, ranks)


# -- the judge -------------------------------------------------------------------------------------------------


class Judge:
    """Says which digit a drawing shows: a ridge regression on pixels and their products, fitted to the real digits.

    It is right for 98 % of the digits of the evaluation.
    """

    def __init__(self) -> None:
        pixels, classes = _pixels(training=True)
        inputs = _products(torch.from_numpy(pixels).double())
        targets = 2 * torch.nn.functional.one_hot(torch.from_numpy(classes), digits.CLASSES).double() - 1
        ridge = RIDGE * torch.eye(inputs.shape[1], dtype=torch.float64)
        self._weights = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets).float()

    def classes(self, pixels: Tensor) -> Tensor:
        """Return the class of each drawing, (drawings, 1, rows, columns)."""
        weights = self._weights.to(pixels.device)
        with torch.autocast(pixels.device.type, enabled=False):
            return (_products(pixels.float()) @ weights).argmax(1)


@cache
def judge() -> Judge:
    """Return the judge, which is fitted once."""
    return Judge()


def _products(pixels: Tensor) -> Tensor:
    """Return the pixels, the products of each two of them, and a one, for each drawing."""
    flat = pixels.flatten(1)
    first, second = np.triu_indices(flat.shape[1])
    ones = torch.ones_like(flat[:, :1])
    return torch.cat((flat, flat[:, first] * flat[:, second], ones), dim=1)
