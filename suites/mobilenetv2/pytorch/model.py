"""The model: torchvision's MobileNetV2, with the size that the config sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torchvision.models import MobileNetV2

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    return MobileNetV2(
        num_classes=config.num_classes,
        width_mult=config.width,
        inverted_residual_setting=[list(stage) for stage in config.stages],
        dropout=config.dropout,
    )
