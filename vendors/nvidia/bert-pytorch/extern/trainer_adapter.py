"""BERT's LAMB in two Triton kernels: two fifths of the standard step's traffic to memory, which it waits for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flagperf_driver.pytorch import optimizers, steps

if TYPE_CHECKING:
    import torch
    from torch import nn

    from flagperf_driver.pytorch import Context


def create_optimizer(ctx: Context, model: nn.Module) -> torch.optim.Optimizer:
    """Give the suite's own optimizer, its LAMB computed by kernels of ours where they can run."""
    if not _fits(ctx):
        return steps.create_optimizer(ctx, model)
    from .fused_lamb import FusedLamb

    config = ctx.config
    groups = optimizers.parameter_groups(model, config.weight_decay)
    return FusedLamb(groups, config.learning_rate, (config.beta1, config.beta2), config.epsilon)


def _fits(ctx: Context) -> bool:
    """Say whether it is LAMB, of whole parameters, on a GPU, or in Triton's interpreter, which needs none."""
    sharded = ctx.config.parallel == "fsdp" and ctx.world_size > 1
    runs = ctx.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return ctx.config.optimizer == "lamb" and ctx.config.fused_optimizer and runs and not sharded
