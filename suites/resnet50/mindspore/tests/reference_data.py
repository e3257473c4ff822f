"""Checks of ResNet-50's reference data: ImageNet in folders is read and learnt; a damaged picture is reported."""

from __future__ import annotations

from pathlib import Path

import checking

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {
    "layers": [1, 1, 1, 1], "width_per_group": 16, "expansion": 1, "num_classes": len(imagenet.CLASSES),
    "image_size": 96, "resize_size": 110,
    "train_batch_size": 6, "learning_rate": 0.02, "num_workers": 2, "lr_schedule": "constant",
}  # fmt: skip
CUT = imagenet.CUT


def write(path: Path) -> None:
    """Write the tiny data directory."""
    imagenet.write(path)


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_imagenet_is_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("imagenet"))


def check_a_damaged_picture_is_named() -> None:
    def cut(path: Path) -> None:
        (path / CUT).write_bytes((path / CUT).read_bytes()[:900])

    TINY.damaged(cut, CUT, "cannot be read as an image", "copy the file again")
