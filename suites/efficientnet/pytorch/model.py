"""The model: torchvision's EfficientNet, version 2, with the stages that the config lists."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn
from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context

BLOCKS = {"fused": FusedMBConvConfig, "depthwise": MBConvConfig}
KERNEL = 3


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    channels = pairwise([config.stem_channels, *(stage[3] for stage in config.stages)])
    stages = [
        BLOCKS[block](expansion, KERNEL, stride, *in_and_out, blocks)
        for (block, expansion, stride, _, blocks), in_and_out in zip(config.stages, channels, strict=True)
    ]
    return EfficientNet(
        stages,
        dropout=config.dropout,
        stochastic_depth_prob=config.stochastic_depth,
        num_classes=config.num_classes,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
        last_channel=config.last_channels,
    )
