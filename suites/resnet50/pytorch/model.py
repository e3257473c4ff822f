"""The model: torchvision's ResNet of bottleneck blocks, with the size that the config sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    block = type("Bottleneck", (Bottleneck,), {"expansion": config.expansion})
    return ResNet(
        block,
        list(config.layers),
        num_classes=config.num_classes,
        width_per_group=config.width_per_group,
    )
