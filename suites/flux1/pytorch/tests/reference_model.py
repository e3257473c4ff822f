"""Checks of the reference model: its size; the first step trains the last layer, later steps all parameters."""

from __future__ import annotations

import math

import checking
import steps
import torch
from torch import nn

from tests.suites import trials

PUBLISHED = 11_891_178_560
"""FLUX.1-schnell, exactly by the sizes in its ``config.json``: https://huggingface.co/black-forest-labs/FLUX.1-schnell."""
SMALLER = {
    "train_batch_size": 2, "gradient_accumulation_steps": 1, "hidden_size": 96, "num_heads": 3, "num_double_blocks": 2,
    "num_single_blocks": 2, "rope_axes": [8, 12, 12], "text_size": 64, "text_tokens": 8, "latent_side": 8,
}  # fmt: skip
LAST = {"last.linear.weight", "last.linear.bias"}


def check_the_model_has_all_parameters() -> None:
    width, double, single = 3072, 339_831_296, 141_591_808
    inputs = 65 * width + 4097 * width + (257 + 769) * width + 2 * (width + 1) * width
    last = (width + 1) * 2 * width + (width + 1) * 64
    assert inputs + 19 * double + 38 * single + last == PUBLISHED
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_the_first_step_trains_the_last_layer_only() -> None:
    """The last layer and all gates begin as 0, so no gradient passes them yet."""
    step = trials.one_step(checking.SUITE, learning_rate=1.0, weight_decay=0.0, **SMALLER)
    assert math.isfinite(step.loss)
    names = {name for name, _ in _model().named_parameters()}
    assert set(step.unchanged) == names - LAST


def check_every_parameter_has_a_gradient_once_the_gates_are_open() -> None:
    assert _without_gradient(_model()) == []
    frozen = _model()
    frozen.get_parameter("single_blocks.1.out.weight").requires_grad = False
    assert _without_gradient(frozen) == ["single_blocks.1.out.weight"], "the control"


def _model() -> nn.Module:
    return steps.create_model(checking.context("reference", **SMALLER))


def _without_gradient(model: nn.Module) -> list[str]:
    """Return the parameters without a gradient, of a model with random weights only."""
    ctx = checking.context("reference", synthetic=True, precision="fp32", **SMALLER)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    steps.calculate_loss(ctx, model, next(iter(steps.create_train_data(ctx)))).backward()
    return [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
