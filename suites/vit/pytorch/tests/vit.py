"""Checks of ViT-B/16's model."""

from __future__ import annotations

from itertools import chain

import model
import torch
from checking import context
from torch import nn
from torchvision.models import VisionTransformer as Theirs


def torchvisions() -> Theirs:
    """Return FlagPerf's model, in the small size."""
    config = context().config
    return Theirs(
        image_size=config.image_size, patch_size=config.patch_size, num_layers=config.depth,
        num_heads=config.num_heads, hidden_dim=config.embed_dim, mlp_dim=4 * config.embed_dim,
        num_classes=config.num_classes,
    )  # fmt: skip


def in_timms_order(theirs: Theirs) -> list[torch.Tensor]:
    """Return torchvision's parameters in the order of timm's model."""
    encoder = theirs.encoder
    embedding = [theirs.class_token, encoder.pos_embedding, *theirs.conv_proj.parameters()]
    return [*embedding, *encoder.layers.parameters(), *encoder.ln.parameters(), *theirs.heads.parameters()]


def check_it_computes_what_torchvisions_model_computes() -> None:
    torch.manual_seed(1)
    ours, theirs = model.create_model(context()).eval(), torchvisions().eval()
    for parameter in chain(ours.parameters(), theirs.parameters()):
        nn.init.normal_(parameter, std=0.1)
    pixels = torch.randn(3, 3, 16, 16)
    assert not torch.allclose(ours(pixels), theirs(pixels), atol=1e-2), "the control: other weights"
    with torch.no_grad():
        for parameter, source in zip(ours.parameters(), in_timms_order(theirs), strict=True):
            parameter.copy_(source)
    assert torch.allclose(ours(pixels), theirs(pixels), atol=1e-4)


def check_the_initial_weights_are_as_large_as_torchvisions() -> None:
    def different(**settings: object) -> set[str]:
        """Return the parameters whose root of the mean square differs from that of torchvision's by 15 % or more."""
        torch.manual_seed(1)
        ours = dict(model.create_model(context(**settings)).named_parameters())
        pairs = zip(ours, ours.values(), in_timms_order(torchvisions()), strict=True)
        return {name.rpartition("attn.")[2] for name, one, other in pairs if not close(size(one), size(other))}

    def size(parameter: torch.Tensor) -> float:
        return float(parameter.detach().square().mean().sqrt())

    def close(one: float, other: float) -> bool:
        return abs(one - other) < 0.15 * other + 1e-5

    assert different() == {"proj.weight"}, "torchvision has smaller weights after attention"
    assert "qkv.weight" in different(weight_init=""), "the control: timm's own initial weights"
