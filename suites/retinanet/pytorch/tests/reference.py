"""RetinaNet's reference scale: COCO as published, and a step of the full model."""

from __future__ import annotations

from torch import nn
from torchvision.models.detection import retinanet_resnet50_fpn

from tests.suites import trials
from tests.suites.tiny_data import coco

SMALLER = {
    **coco.SMALLER, "anchor_sizes": [32, 48, 64, 96, 128], "head_layers": 1, "head_deviation": 0.08,
    "prior_probability": 0.1,
}  # fmt: skip
CUT, write = coco.CUT, coco.write_with_weights
PARAMETERS = 34_014_999
"""num_params of torchvision's ``RetinaNet_ResNet50_FPN_Weights.COCO_V1``."""
STEP = {"init_checkpoint": None, "train_batch_size": 1, "shapes": [(256, 320)]}
UNTRAINED = r"backbone\.body\.(conv1|layer1)\."
FROZEN = "head.classification_head.cls_logits.bias"
OTHER = {"fpn_channels": 128}


def published() -> nn.Module:
    model: nn.Module = retinanet_resnet50_fpn(weights_backbone=None)
    return model


def judge(trained: trials.Trained) -> None:
    assert set(trained.metrics) == {"map", "map50"}
