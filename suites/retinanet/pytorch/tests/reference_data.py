"""Checks of RetinaNet's reference data: COCO is read as published; damaged data are reported."""

from __future__ import annotations

from pathlib import Path

import checking
import torch
from torchvision.models.resnet import Bottleneck, ResNet

from tests.suites import trials
from tests.suites.tiny_data import coco

SMALLER = {
    "layers": [1, 1, 1, 1], "width_per_group": 16, "expansion": 1, "fpn_channels": 32, "trainable_layers": 5,
    "num_classes": 1 + len(coco.CATEGORIES), "shapes": [(96, 128), (128, 96)], "min_size": 96, "max_size": 128,
    "max_boxes": 3, "anchor_sizes": [32, 48, 64, 96, 128], "head_layers": 1, "head_deviation": 0.08,
    "prior_probability": 0.1, "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 0.01, "lr_warmup": 5,
    "num_workers": 2,
}  # fmt: skip

CUT = "train2017/000000000007.jpg"


def write(path: Path) -> None:
    """Write the tiny data directory, with the weights of the smaller backbone."""
    block = type("Bottleneck", (Bottleneck,), {"expansion": SMALLER["expansion"]})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        body = ResNet(block, [1, 1, 1, 1], width_per_group=16)
    coco.write(path, dict(body.state_dict()))


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_coco_is_read_and_learnt() -> None:
    assert set(TINY.check_learnt(TINY.folder("coco")).metrics) == {"map", "map50"}


def check_missing_weights_are_named() -> None:
    TINY.damaged(lambda path: (path / coco.WEIGHTS).unlink(), coco.WEIGHTS, "file not found", "init_checkpoint")
