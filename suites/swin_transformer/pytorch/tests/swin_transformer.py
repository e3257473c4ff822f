"""Checks of Swin-T's model and of its learning rate."""

from __future__ import annotations

from dataclasses import replace

import model
import torch
from checking import context
from timm.models.swin_transformer import WindowAttention
from torch import nn


def attentions(net: nn.Module) -> list[WindowAttention]:
    return [module for module in net.modules() if isinstance(module, WindowAttention)]


def check_fused_attention_computes_the_same() -> None:
    torch.manual_seed(1)
    net, other = (model.create_model(context(fused_attention=fused)).eval() for fused in (True, False))
    other.load_state_dict(net.state_dict())
    used = [[attention.fused_attn for attention in attentions(one)] for one in (net, other)]
    assert used == [[True] * 4, [False] * 4]
    pixels = torch.randn(2, 3, 16, 16)
    fused = net(pixels)
    assert torch.allclose(other(pixels), fused, atol=1e-5)
    nn.init.normal_(attentions(other)[1].relative_position_bias_table, std=2.0)
    assert not torch.allclose(other(pixels), fused, atol=1e-5), "the control: another bias of the positions"


def check_the_learning_rate_grows_with_the_images_of_a_step() -> None:
    def rates(world_size: int, **settings: object) -> set[float]:
        ctx = replace(context(lr_batch=512, learning_rate=5e-4, **settings), world_size=world_size)
        return {group["lr"] for group in model.create_optimizer(ctx, net).param_groups}

    net = model.create_model(context())
    assert rates(1, train_batch_size=256) == {2.5e-4}
    assert rates(8, train_batch_size=256) == {2e-3}
    assert rates(8, train_batch_size=128, gradient_accumulation_steps=2) == {2e-3}
    ctx = context()
    small = model.create_optimizer(replace(ctx, world_size=8), net)
    assert {group["lr"] for group in small.param_groups} == {ctx.config.learning_rate}, "the config's"


def check_weight_decay_spares_vectors_and_position_biases() -> None:
    net = model.create_model(context())
    decayed, spared = model.create_optimizer(context(), net).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.05, 0.0)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    tables = [name for name in names.values() if name.endswith("relative_position_bias_table")]
    assert len(tables) == 4
    assert {names[id(parameter)] for parameter in spared["params"] if parameter.ndim > 1} == {*tables}
