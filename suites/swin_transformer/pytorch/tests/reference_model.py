"""Checks of Swin-T's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 28_288_354
"""num_params of torchvision's ``Swin_T_Weights.IMAGENET1K_V1``."""
AT_ONCE = {"train_batch_size": 2, "lr_batch": None, "lr_warmup": 0, "drop_path_rate": 0.0}
"""A step that is large enough to change a float32 of 1."""


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **AT_ONCE)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    name = "layers.2.blocks.5.attn.relative_position_bias_table"
    assert trials.one_step(checking.SUITE, frozen=name, **AT_ONCE).unchanged == [name]
