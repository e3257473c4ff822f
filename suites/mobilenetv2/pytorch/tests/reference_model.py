"""Checks of MobileNetV2's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 3_504_872
"""num_params of torchvision's ``MobileNet_V2_Weights.IMAGENET1K_V1``."""


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, train_batch_size=2)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []
