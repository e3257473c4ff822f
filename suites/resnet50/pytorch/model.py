"""The model: torchvision's ResNet of bottleneck blocks, with the size that the config sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from flagperf_driver.pytorch import optimizers

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


def create_optimizer(ctx: Context, model: nn.Module) -> torch.optim.Optimizer:
    """Apply weight decay to all parameters, as FlagPerf does; the default excludes norms and biases."""
    groups = [{"params": list(model.parameters()), "weight_decay": ctx.config.weight_decay}]
    return optimizers.create(ctx.config, groups)
