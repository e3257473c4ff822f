"""Checks of Big Transfer's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 236_335_208
"""Of timm's ``resnetv2_152x2_bit`` with 1000 classes; 236.34 million in timm's table of results."""
SMALLER = {
    "layers": [2, 2, 2, 2], "width_factor": 1, "train_batch_size": 2, "image_size": 64, "lr_warmup": 0,
}  # fmt: skip


def check_the_model_has_all_parameters() -> None:
    assert trials.parameters(checking.SUITE) == PARAMETERS


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    name = "stages.3.blocks.0.downsample.conv.weight"
    assert trials.one_step(checking.SUITE, frozen=name, **SMALLER).unchanged == [name]
