"""Checks of Faster R-CNN's reference data: COCO is read as published; damaged data are reported."""

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
    "max_boxes": 3, "anchor_sizes": [16, 32, 48, 64, 96], "train_proposals": 64, "eval_proposals": 32,
    "anchor_samples": 64, "box_samples": 32, "pool_size": 5, "head_width": 64, "train_batch_size": 4,
    "eval_batch_size": 2, "learning_rate": 0.01, "lr_warmup": 5, "num_workers": 2,
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


def check_damaged_and_missing_files_are_named() -> None:
    def cut(path: Path) -> None:
        (path / CUT).write_bytes((path / CUT).read_bytes()[:900])

    for workers in (0, 2):
        TINY.damaged(cut, CUT, "cannot be read as an image", "copy the file again", num_workers=workers)
    TINY.damaged(lambda path: (path / coco.WEIGHTS).unlink(), coco.WEIGHTS, "file not found", "init_checkpoint")
    TINY.damaged(lambda path: shutil.rmtree(path / "val2017"), "val2017", "folder not found", "val2017.zip")
    TINY.damaged(lambda path: (path / "annotations/instances_val2017.json").write_text("{"), "cannot be read as JSON")
    TINY.damaged(lambda _: None, "3 categories", "num_classes = 3 must be greater", num_classes=3)


def check_surplus_files_are_ignored() -> None:
    path = TINY.folder("surplus")
    (path / "train2017/README.txt").write_text("surplus")
    (path / "annotations/captions_train2017.json").write_text("{}")
    assert TINY.train(path, max_steps=3) == TINY.train(TINY.folder("without surplus"), max_steps=3)
