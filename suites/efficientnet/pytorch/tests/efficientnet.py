"""Checks of EfficientNet's model and of its weight decay."""

from __future__ import annotations

import model
from checking import context
from torch import nn

from flagperf_driver.pytorch.steps import create_optimizer


def check_the_reference_is_efficientnet_v2_s() -> None:
    from torchvision.models import efficientnet_v2_s

    ours, theirs = model.create_model(context("reference")), efficientnet_v2_s()
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes
    assert repr(ours) == repr(theirs), "dropout, stochastic depth and epsilon are not in the shapes"
    other = model.create_model(context("reference", stochastic_depth=0.1))
    assert repr(other) != repr(theirs), "the control: another share of skipped blocks"


def check_weight_decay_spares_batch_normalization_only() -> None:
    for scale in ("reference", "small"):
        ctx = context(scale)
        net = model.create_model(ctx)
        norms = {id(p) for module in net.modules() if isinstance(module, nn.BatchNorm2d) for p in module.parameters()}
        assert spared(net, context(scale)) == norms
        assert spared(net, context(scale, decay_vectors=False)) > norms, "the control: biases too"


def spared(net: nn.Module, ctx: object) -> set[int]:
    """Return the parameters without weight decay."""
    groups = create_optimizer(ctx, net).param_groups  # type: ignore[arg-type]
    return {id(parameter) for group in groups if not group["weight_decay"] for parameter in group["params"]}
