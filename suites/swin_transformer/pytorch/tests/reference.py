"""Swin-T's reference scale: ImageNet's folders, and a step of the full model."""

from __future__ import annotations

import timm
from torch import nn

from tests.suites.tiny_data import imagenet

SMALLER = {
    "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "drop_path_rate": 0.0,
    "num_classes": len(imagenet.CLASSES), "image_size": 64, "resize_size": 73, "mixup": 0.0, "cutmix": 0.0,
    "train_batch_size": 6, "learning_rate": 2e-3, "lr_batch": None, "lr_warmup": 0, "num_workers": 2,
}  # fmt: skip
CUT, write = imagenet.CUT, imagenet.write
PARAMETERS = 28_288_354
"""num_params of torchvision's ``Swin_T_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 2, "lr_batch": None, "lr_warmup": 0, "drop_path_rate": 0.0}
"""A step that is large enough to change a float32 of 1."""
FROZEN = "layers.2.blocks.5.attn.relative_position_bias_table"
OTHER = {"depths": [2, 2, 18, 2]}


def published() -> nn.Module:
    model: nn.Module = timm.create_model("swin_tiny_patch4_window7_224")
    return model
