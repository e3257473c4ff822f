"""Checks of ViT-B/16's reference data: ImageNet's folders are read and learnt."""

from __future__ import annotations

from checking import SCRATCH, SUITE

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {
    "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": len(imagenet.CLASSES), "image_size": 64,
    "resize_size": 73, "mixup": 0.0, "cutmix": 0.0, "train_batch_size": 6, "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3, "lr_warmup": 0, "num_workers": 2,
}  # fmt: skip
CUT = imagenet.CUT
TINY = trials.TinyData(SUITE, SCRATCH, SMALLER, imagenet.write)
write = TINY.write


def check_imagenet_is_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("imagenet"))
