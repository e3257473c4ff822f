"""Checks of EfficientNetV2-S's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 21_458_488
"""num_params of torchvision's ``EfficientNet_V2_S_Weights.IMAGENET1K_V1``."""
FEWER = {"train_batch_size": 4, "repeats": 1, "image_size": 96, "stochastic_depth": 0.0}
"""Small images, and no block that all of the few images skip."""


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **FEWER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    name = "features.6.14.block.3.1.weight"
    assert trials.one_step(checking.SUITE, frozen=name, **FEWER).unchanged == [name]
