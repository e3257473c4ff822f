"""The model, timm's Swin Transformer with the size that the config sets, and its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timm.layers import set_fused_attn
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from flagperf_driver.pytorch import steps

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    set_fused_attn(config.fused_attention, experimental=True)  # timm's default is attention in single operations
    return SwinTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        embed_dim=config.embed_dim,
        depths=config.depths,
        num_heads=config.num_heads,
        window_size=config.window_size,
        drop_path_rate=config.drop_path_rate,
    )


def create_optimizer(ctx: Context, model: nn.Module) -> Optimizer:
    """Return the optimizer; its learning rate is in proportion to the images of an optimizer step."""
    config, optimizer = ctx.config, steps.create_optimizer(ctx, model)
    if config.lr_batch is not None:
        images = config.train_batch_size * config.gradient_accumulation_steps * ctx.data_ranks
        for group in optimizer.param_groups:
            group["lr"] *= images / config.lr_batch
    return optimizer
