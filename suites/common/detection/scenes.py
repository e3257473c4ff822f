"""Scenes for the small scale: real handwritten digits 0, 1 and 4 on noise, with exact boxes and masks."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from common.detection.coco import Index, encode_runs, parse
from common.images import digits
from common.shares import Array

SIZE = 64
DIGITS = (0, 1, 4)
"""The classes; other digits are too similar to each other for a training of seconds."""
TRAIN, EVAL = 400, 64
SPLIT_SEED = 7  # the same scenes for all rounds: the evaluation does not depend on the round's seed
MOST = 3
"""The greatest number of digits in a scene."""
SIDES = (16, 28)
INK = 0.3
"""The darkness from which a point belongs to a digit."""


class Scenes(NamedTuple):
    """Pictures and their annotations."""

    pixels: Array
    index: Index

    def read(self, number: int) -> Image.Image:
        """Return one picture."""
        return Image.fromarray(self.pixels[number])


@cache
def load(*, train: bool) -> Scenes:
    """Return the scenes of one part; their digits are only in this part."""
    with np.load(digits.FILE) as file:
        chosen = digits.split()[0 if train else 1]
        chosen = chosen[np.isin(file["y"][chosen], DIGITS)]
        shapes, kinds = file["x"][chosen].astype(np.float32) / 16, file["y"][chosen]
    rng = np.random.default_rng((SPLIT_SEED, train))
    count = TRAIN if train else EVAL
    pixels: Array = np.empty((count, SIZE, SIZE, 3), np.uint8)
    objects: list[dict[str, Any]] = []
    for number in range(count):
        pixels[number], found = _scene(shapes, kinds, rng)
        objects += [
            {**annotation, "image_id": number, "id": len(objects) + place} for place, annotation in enumerate(found)
        ]
    content = {
        "images": [{"id": place, "file_name": f"{place}", "height": SIZE, "width": SIZE} for place in range(count)],
        "annotations": objects,
        "categories": [{"id": digit, "name": str(digit)} for digit in DIGITS],
    }
    return Scenes(pixels, parse(content, "scenes of digits"))


def _scene(shapes: Array, kinds: Array, rng: np.random.Generator) -> tuple[Array, list[dict[str, Any]]]:
    """Return a picture and COCO's annotations of its objects."""
    picture = 0.15 * _enlarged(rng.random((8, 8), np.float32), SIZE)[..., None] + 0.05 * rng.random((SIZE, SIZE, 3))
    taken: Array = np.zeros((SIZE, SIZE), np.bool_)
    objects = []
    for _ in range(rng.integers(1, MOST + 1)):
        side = int(rng.integers(SIDES[0], SIDES[1] + 1))
        if (place := _free_place(taken, side, rng)) is None:
            continue
        chosen = int(rng.integers(len(shapes)))
        digit = _enlarged(shapes[chosen], side)
        colour = 0.5 + 0.5 * rng.random(3)
        picture[place] = np.maximum(picture[place], digit[..., None] * colour)
        taken[place] = True
        mask: Array = np.zeros((SIZE, SIZE), np.uint8)
        mask[place] = digit > INK
        objects.append(_annotation(mask, int(kinds[chosen])))
    return (255 * picture).round().clip(0, 255).astype(np.uint8), objects


def _free_place(taken: Array, side: int, rng: np.random.Generator) -> tuple[slice, slice] | None:
    for _ in range(10):
        top, left = rng.integers(0, SIZE - side + 1, 2).tolist()
        place = slice(top, top + side), slice(left, left + side)
        if not taken[place].any():
            return place
    return None


def _annotation(mask: Array, digit: int) -> dict[str, Any]:
    rows, columns = mask.any(axis=1).nonzero()[0], mask.any(axis=0).nonzero()[0]
    top, left = int(rows[0]), int(columns[0])
    return {
        "category_id": digit,
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": [SIZE, SIZE], "counts": encode_runs(mask)},
    }


def _enlarged(pixels: Array, side: int) -> Array:
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR))
