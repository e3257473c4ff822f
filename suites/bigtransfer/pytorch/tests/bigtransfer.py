"""Checks of Big Transfer's model and of its schedule."""

from __future__ import annotations

from dataclasses import replace

import model
import torch
from checking import context, raises
from timm import create_model

from flagperf_driver.training import schedules


def check_the_reference_is_bit_r152x2() -> None:
    with torch.device("meta"):
        theirs = create_model("resnetv2_152x2_bit", pretrained=False, num_classes=1000)
        ours = model.create_model(context("reference", synthetic=True))
        other = model.create_model(context("reference", synthetic=True, norm_groups=16))
    assert shapes(ours) == shapes(theirs)
    assert repr(ours) == repr(theirs).replace("StdConv2d", "StandardizedConv2d")
    assert repr(ours) != repr(other), "the control: other groups of normalization have the same shapes"


def shapes(net: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def check_initial_weights_need_a_data_dir() -> None:
    ctx = replace(context("reference", layers=[1, 1, 1, 1], width_factor=1), data_dir=None)
    raises(ValueError, lambda: model.create_model(ctx), "BiT-M-R152x2.npz", "--data-dir")
    model.create_model(replace(ctx, synthetic=True))


def check_the_rate_falls_at_the_published_steps() -> None:
    share = schedules.factor(context("reference").config)
    steps = (1, 250, 500, 501, 3000, 3001, 6000, 6001, 9000, 9001, 10000)
    expected = (0.002, 0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001)
    assert [share(step) for step in steps] == list(expected)
