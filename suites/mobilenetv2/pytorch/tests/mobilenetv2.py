"""Checks of MobileNetV2's model."""

from __future__ import annotations

import model
import torch
from checking import context
from torch import nn


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def check_the_reference_is_mobilenetv2() -> None:
    from torchvision.models import mobilenet_v2

    theirs = {name: tensor.shape for name, tensor in mobilenet_v2().state_dict().items()}
    ours = {name: tensor.shape for name, tensor in model.create_model(context("reference")).state_dict().items()}
    assert ours == theirs
    wider = model.create_model(context("reference", width=1.4)).state_dict()
    assert {name: tensor.shape for name, tensor in wider.items()} != theirs, "the control: another width differs"


def check_the_small_model_is_small() -> None:
    net = model.create_model(context())
    assert parameters(net) == 131_178
    assert net.eval()(torch.zeros(2, 3, 16, 16)).shape == (2, 10)
