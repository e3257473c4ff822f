"""Checks of Mask R-CNN's reference data: COCO is read as published; damaged data are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import checking
import torch
from torchvision.models.resnet import Bottleneck, ResNet

from tests.suites import trials
from tests.suites.tiny_data import coco

SMALLER = {
    "layers": [1, 1, 1, 1], "width_per_group": 16, "expansion": 1, "fpn_channels": 32, "trainable_layers": 5,
    "num_classes": 1 + len(coco.CATEGORIES), "shapes": [(96, 128), (128, 96)], "min_size": 96, "max_size": 128,
    "max_boxes": 3, "mask_size": 28, "anchor_sizes": [16, 32, 48, 64, 96], "train_proposals": 64,
    "eval_proposals": 32, "anchor_samples": 64, "box_samples": 32, "pool_size": 5, "head_width": 64,
    "mask_pool_size": 7, "mask_layers": [32], "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 0.01,
    "lr_warmup": 5, "num_workers": 2,
}  # fmt: skip

CUT = "train2017/000000000007.jpg"
WEIGHTS = "checkpoint/resnet50.pth"


def write(path: Path) -> None:
    """Write the tiny data directory, with the weights of the smaller backbone."""
    block = type("Bottleneck", (Bottleneck,), {"expansion": SMALLER["expansion"]})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        body = ResNet(block, [1, 1, 1, 1], width_per_group=16)
    coco.write(path, dict(body.state_dict()))
    (path / WEIGHTS).parent.mkdir(exist_ok=True)
    shutil.copy(path / coco.WEIGHTS, path / WEIGHTS)


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_coco_is_read_and_learnt() -> None:
    assert set(TINY.check_learnt(TINY.folder("coco")).metrics) == {"map", "map50", "map_segm", "map50_segm"}


def check_missing_weights_are_named() -> None:
    TINY.damaged(lambda path: (path / WEIGHTS).unlink(), WEIGHTS, "file not found", "init_checkpoint")
