"""Checks of Big Transfer's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 236_335_208
"""Of timm's ``resnetv2_152x2_bit`` with 1000 classes; 236.34 million in timm's table of results."""
FEWER = {"train_batch_size": 2, "image_size": 64, "lr_warmup": 0}


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **FEWER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    name = "stages.3.blocks.0.downsample.conv.weight"
    smaller = {"layers": [1, 1, 1, 1], "width_factor": 1}
    assert trials.one_step(checking.SUITE, frozen=name, **FEWER, **smaller).unchanged == [name]
