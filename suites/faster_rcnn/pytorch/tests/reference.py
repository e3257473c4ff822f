"""Faster R-CNN's reference scale: COCO as published, and a step of the full model."""

from __future__ import annotations

import checking
from torch import nn
from torchvision.models.detection import fasterrcnn_resnet50_fpn

from tests.suites import trials
from tests.suites.damage import remove
from tests.suites.tiny_data import coco

SMALLER = {**coco.SMALLER, **coco.TWO_STAGES}
CUT = coco.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, coco.write_with_weights)
write = TINY.write
PARAMETERS = 41_755_286
"""num_params of torchvision's ``FasterRCNN_ResNet50_FPN_Weights.COCO_V1``."""
STEP = {"init_checkpoint": None, "train_batch_size": 1, "shapes": [(256, 320)]}
UNTRAINED = r"backbone\.body\.(conv1|layer1)\."
FROZEN = "rpn.head.cls_logits.bias"
OTHER = {"fpn_channels": 128}


def published() -> nn.Module:
    model: nn.Module = fasterrcnn_resnet50_fpn(weights_backbone=None)
    return model


def judge(trained: trials.Trained) -> None:
    assert set(trained.metrics) == {"map", "map50"}


def check_missing_weights_and_too_few_classes_are_named() -> None:
    TINY.damaged(remove(coco.WEIGHTS), coco.WEIGHTS, "file not found", "init_checkpoint")
    TINY.damaged(lambda _: None, "3 categories", "num_classes = 3 must be greater", num_classes=3)


def check_surplus_files_are_ignored() -> None:
    path = TINY.folder("surplus")
    (path / "train2017/README.txt").write_text("surplus")
    (path / "annotations/captions_train2017.json").write_text("{}")
    assert TINY.train(path, max_steps=3) == TINY.train(TINY.folder("without surplus"), max_steps=3)
