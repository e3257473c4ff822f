"""Checks of ResNet-50's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 25_557_032
"""num_params of torchvision's ``ResNet50_Weights.IMAGENET1K_V1``."""


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, train_batch_size=2, lr_warmup=0)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_not_trained() -> None:
    name = "layer4.2.bn3/gamma"
    step = trials.one_step(checking.SUITE, frozen=name, train_batch_size=2, lr_warmup=0)
    assert step.parameters == PARAMETERS - 2048
    assert step.unchanged == []
