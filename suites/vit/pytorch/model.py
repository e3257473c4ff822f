"""The model: timm's Vision Transformer, with the size that the config sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from flagperf_driver.pytorch.steps import compile_methods

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    config = ctx.config
    return VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        weight_init=config.weight_init,
    )


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one block for all of them; the few operations before and behind the blocks are not compiled."""
    compile_methods(ctx, model.blocks, "forward")
    return model
