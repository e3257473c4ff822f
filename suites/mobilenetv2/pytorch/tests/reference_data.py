"""Checks of MobileNetV2's reference data: ImageNet's folders are read and learnt."""

from __future__ import annotations

from checking import SCRATCH, SUITE

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {
    "width": 0.5, "stages": [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]], "num_classes": len(imagenet.CLASSES),
    "image_size": 64, "resize_size": 73, "train_batch_size": 6, "learning_rate": 0.005, "num_workers": 2,
}  # fmt: skip
CUT = imagenet.CUT
TINY = trials.TinyData(SUITE, SCRATCH, SMALLER, imagenet.write)
write = TINY.write


def check_imagenet_is_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("imagenet"))
