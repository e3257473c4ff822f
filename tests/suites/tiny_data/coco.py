"""COCO 2017: ``train2017/``, ``val2017/`` and ``annotations/instances_{train,val}2017.json``, and a backbone's weights.

The data have the peculiarities of the published ones: grey and CMYK pictures, pictures without objects, crowds whose
masks are runs, masks of several parts, boxes that reach beyond the picture, and categories whose numbers have gaps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.suites.tiny_data.imagenet import picture

CATEGORIES = {1: ("person", (200, 40, 40)), 18: ("dog", (40, 200, 40)), 90: ("toothbrush", (40, 40, 200))}
TRAIN, EVAL = 16, 5
SIZES = [(160, 120), (120, 160)]
"""Width and height."""
GREY, CMYK, EMPTY, CROWD, PARTS, BEYOND = 1, 2, 3, 4, 5, 6
"""The numbers of the pictures with a peculiarity."""
WEIGHTS, CUT = "resnet50-0676ba61.pth", "train2017/000000000007.jpg"
"""The backbone's weights, and a picture that a test may cut."""
SMALLER = {
    "layers": [1, 1, 1, 1], "width_per_group": 16, "expansion": 1, "fpn_channels": 32, "trainable_layers": 5,
    "num_classes": 1 + len(CATEGORIES), "shapes": [(96, 128), (128, 96)], "min_size": 96, "max_size": 128,
    "max_boxes": 3, "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 0.01, "lr_warmup": 5,
    "num_workers": 2,
}  # fmt: skip
"""The config of a detector that learns these pictures in a few seconds."""
TWO_STAGES = {
    "anchor_sizes": [16, 32, 48, 64, 96], "train_proposals": 64, "eval_proposals": 32, "anchor_samples": 64,
    "box_samples": 32, "pool_size": 5, "head_width": 64,
}  # fmt: skip
"""The further config of one that finds proposals first."""


def write_with_weights(folder: Path) -> None:
    """Write the data, and the weights of the smaller backbone."""
    import torch
    from torchvision.models.resnet import Bottleneck, ResNet

    write(folder)
    block = type("Bottleneck", (Bottleneck,), {"expansion": SMALLER["expansion"]})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        torch.save(ResNet(block, SMALLER["layers"], width_per_group=16).state_dict(), folder / WEIGHTS)


def write(folder: Path) -> None:
    """Write pictures and annotations."""
    rng = np.random.default_rng(7)
    for part, count in (("train", TRAIN), ("val", EVAL)):
        (folder / f"{part}2017").mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {
            "info": {"year": 2017},
            "images": [],
            "annotations": [],
            "categories": [{"id": number, "name": name} for number, (name, _) in CATEGORIES.items()],
        }
        for number in range(1, count + 1):
            _add(content, folder / f"{part}2017", number, rng)
        file = folder / f"annotations/instances_{part}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")


def _add(content: dict[str, Any], folder: Path, number: int, rng: np.random.Generator) -> None:
    """Write a picture with a rectangle of its category's colour, and its annotations."""
    width, height = SIZES[number % len(SIZES)]
    category = list(CATEGORIES)[number % len(CATEGORIES)]
    pixels = np.array(picture((120, 120, 120), (width, height), rng))
    left, top = (int(rng.integers(5, 40)) for _ in "xy")
    right, bottom = left + int(rng.integers(40, 70)), top + int(rng.integers(40, 70))
    if number == BEYOND:
        right = width + 10
    if number != EMPTY:
        pixels[top:bottom, left:right] = CATEGORIES[category][1]
    name = f"{number:012d}.jpg"
    content["images"].append({"id": number, "file_name": name, "width": width, "height": height})
    form = {GREY: "L", CMYK: "CMYK"}.get(number, "RGB")
    Image.fromarray(pixels).convert(form).save(folder / name, quality=95)
    if number != EMPTY:
        parts = [_rectangle(left, top, right, bottom)]
        if number == PARTS:
            middle = (left + right) // 2
            parts = [_rectangle(left, top, middle - 5, bottom), _rectangle(middle + 5, top, right, bottom)]
        _annotate(content, number, category, (left, top, right, bottom), parts, crowd=False)
    if number == CROWD:
        mask: Any = np.zeros((width, height), int)  # column by column
        mask[100:110, 20:60] = 1
        ends = [*np.flatnonzero(np.diff(mask.reshape(-1), prepend=0)).tolist(), mask.size]
        runs = {"size": [height, width], "counts": np.diff([0, *ends]).tolist()}
        _annotate(content, number, category, (100, 20, 110, 60), runs, crowd=True)


def _rectangle(left: int, top: int, right: int, bottom: int) -> list[int]:
    return [left, top, right, top, right, bottom, left, bottom]


def _annotate(
    content: dict[str, Any], picture: int, category: int, box: tuple[int, int, int, int], mask: Any, *, crowd: bool
) -> None:
    left, top, right, bottom = box
    content["annotations"].append({
        "id": 1000 + len(content["annotations"]), "image_id": picture, "category_id": category, "iscrowd": int(crowd),
        "bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top), "segmentation": mask,
    })  # fmt: skip
