"""Mask R-CNN's reference scale: COCO as published, and a step of the full model."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn
from torchvision.models.detection import maskrcnn_resnet50_fpn

from tests.suites import trials
from tests.suites.tiny_data import coco

SMALLER = {**coco.SMALLER, **coco.TWO_STAGES, "mask_size": 28, "mask_pool_size": 7, "mask_layers": [32]}
CUT, WEIGHTS = coco.CUT, "checkpoint/resnet50.pth"
PARAMETERS = 44_401_393
"""num_params of torchvision's ``MaskRCNN_ResNet50_FPN_Weights.COCO_V1``."""
STEP = {"init_checkpoint": None, "train_batch_size": 1, "shapes": [(256, 320)]}
UNTRAINED = r"backbone\.body\.(conv1|layer1)\."
FROZEN = "roi_heads.mask_predictor.mask_fcn_logits.bias"
OTHER = {"fpn_channels": 128}


def published() -> nn.Module:
    model: nn.Module = maskrcnn_resnet50_fpn(weights_backbone=None)
    return model


def judge(trained: trials.Trained) -> None:
    assert set(trained.metrics) == {"map", "map50", "map_segm", "map50_segm"}


def write(path: Path) -> None:
    """Write the tiny data directory, whose weights have another name."""
    coco.write_with_weights(path)
    (path / WEIGHTS).parent.mkdir(exist_ok=True)
    shutil.copy(path / coco.WEIGHTS, path / WEIGHTS)
