"""ViT-B/16's reference scale: ImageNet's folders, and a step of the full model."""

from __future__ import annotations

import checking
import timm
from torch import nn

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {
    "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": len(imagenet.CLASSES), "image_size": 64,
    "resize_size": 73, "mixup": 0.0, "cutmix": 0.0, "train_batch_size": 6, "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3, "lr_warmup": 0, "num_workers": 2,
}  # fmt: skip
CUT, write = imagenet.CUT, imagenet.write
PARAMETERS = 86_567_656
"""num_params of torchvision's ``ViT_B_16_Weights.IMAGENET1K_V1``."""
FEW = {"train_batch_size": 2, "gradient_accumulation_steps": 1}
STEP = {**FEW, "weight_init": ""}
OTHER = {"patch_size": 32}


def published() -> nn.Module:
    model: nn.Module = timm.create_model("vit_base_patch16_224")
    return model


def check_the_first_step_trains_the_head_only_if_it_begins_with_zeros() -> None:
    step = trials.one_step(checking.SUITE, **FEW, depth=1)
    assert "blocks.0.attn.qkv.bias" in step.unchanged, "weight decay does not change zeros, a gradient does"
    assert step.changed >= {"head.weight", "head.bias"}
