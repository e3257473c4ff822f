"""The model: timm's ResNetV2 in the form of Big Transfer, with the size that the config sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pretrained
import torch
from timm.layers import GroupNormAct, StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context

EPSILON = 1e-10


class StandardizedConv2d(StdConv2d):
    """timm's convolution with standardized weights; timm's own computation copies weights that are channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        result: Tensor = self._conv_forward(x, (self.weight - mean) * torch.rsqrt(variance + self.eps), self.bias)
        return result


def create_model(ctx: Context) -> nn.Module:
    """Return the network with the published weights and a head of zeros; without a checkpoint, with random weights."""
    config = ctx.config
    net = ResNetV2(
        list(config.layers),
        channels=tuple(config.channels),
        num_classes=config.num_classes,
        width_factor=config.width_factor,
        stem_chs=config.stem_channels,
        stem_type="fixed",
        norm_layer=partial(GroupNormAct, num_groups=config.norm_groups),
        conv_layer=partial(StandardizedConv2d, eps=EPSILON),
    )
    if config.init_checkpoint and not ctx.synthetic:
        if ctx.data_dir is None:
            raise ValueError(f"init_checkpoint = {config.init_checkpoint!r} needs data_dir; pass --data-dir")
        pretrained.load(net, ctx.data_dir / config.init_checkpoint, config.checkpoint_classes)
    return net
