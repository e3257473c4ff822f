"""BERT's LAMB in two Triton kernels, with two fifths of the memory traffic of the standard step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flagperf_driver.pytorch import optimizers, steps

if TYPE_CHECKING:
    import torch
    from torch import nn

    from flagperf_driver.pytorch import Context


def create_optimizer(ctx: Context, model: nn.Module) -> torch.optim.Optimizer:
    """Return the suite's optimizer, but LAMB with the fused kernels if they support the case."""
    if not _is_supported(ctx):
        return steps.create_optimizer(ctx, model)
    from .fused_lamb import FusedLamb

    config = ctx.config
    groups = optimizers.parameter_groups(model, config)
    return FusedLamb(groups, config.learning_rate, (config.beta1, config.beta2), config.epsilon)


def _is_supported(ctx: Context) -> bool:
    """Return True for LAMB with unsharded parameters on a GPU or in Triton's interpreter."""
    can_run = ctx.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return ctx.config.optimizer == "lamb" and ctx.config.fused_optimizer and can_run and not ctx.parallel.is_sharded
