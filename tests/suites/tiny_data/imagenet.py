"""ImageNet as folders of classes: ``train/<wnid>/<wnid>_<n>.JPEG`` and ``val/<wnid>/ILSVRC2012_val_<n>.JPEG``.

The pictures have the peculiarities of the published ones: many sizes and proportions, grey and CMYK pictures, an EXIF
orientation, which the data set's users ignore, and a PNG whose name ends in .JPEG.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = {"n01440764": (200, 40, 40), "n01443537": (40, 200, 40), "n02105855": (40, 40, 200)}
"""The folders and their main colours."""
TRAIN, EVAL = 8, 2
"""Pictures of each class."""
SIZES = [(500, 375), (375, 500), (120, 90), (256, 256), (640, 200), (60, 44)]
ORIENTATION, ROTATED = 0x0112, 6
GREY, CMYK, TURNED, PNG, CUT = (f"train/n01440764/n01440764_{n}.JPEG" for n in (1, 2, 3, 4, 5))
"""Unusual pictures, and one that a test may cut."""
RESNET = {
    "layers": [1, 1, 1, 1], "width_per_group": 16, "expansion": 1, "num_classes": len(CLASSES), "image_size": 96,
    "resize_size": 110, "train_batch_size": 6, "num_workers": 2,
}  # fmt: skip
"""The config of a ResNet that learns these pictures in a few seconds, but for its learning rate."""


def write(folder: Path) -> None:
    """Write the training and the evaluation pictures."""
    rng = np.random.default_rng(7)
    for label, (wnid, colour) in enumerate(CLASSES.items()):
        for number in range(1, TRAIN + 1):
            size = SIZES[number % len(SIZES)]
            _save(folder / f"train/{wnid}/{wnid}_{number}.JPEG", picture(colour, size, rng), folder)
        for number in range(1, EVAL + 1):
            name = f"ILSVRC2012_val_{label * EVAL + number:08d}.JPEG"
            size = SIZES[number % len(SIZES)]
            _save(folder / f"val/{wnid}/{name}", picture(colour, size, rng), folder)


def picture(
    colour: tuple[int, int, int], size: tuple[int, int], rng: np.random.Generator, noise: float = 25
) -> Image.Image:
    """Make a picture of one colour with noise."""
    width, height = size
    brightness = np.linspace(0.6, 1.2, height)[:, None, None]  # darker at the top
    pixels = rng.normal(0, noise, (height, width, 3)) + brightness * np.array(colour)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGB")


def _save(path: Path, image: Image.Image, folder: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.relative_to(folder).as_posix()
    if kind == PNG:
        image.save(path, "PNG")
    elif kind == TURNED:
        exif = Image.Exif()
        exif[ORIENTATION] = ROTATED
        image.save(path, "JPEG", exif=exif)
    else:
        image.convert({GREY: "L", CMYK: "CMYK"}.get(kind, "RGB")).save(path, "JPEG")
