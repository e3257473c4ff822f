"""Checks of RetinaNet's reference model: one optimizer step trains all parameters that are not frozen."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 34_014_999
"""num_params of torchvision's ``RetinaNet_ResNet50_FPN_Weights.COCO_V1``."""
SMALLER = {"init_checkpoint": None, "train_batch_size": 1, "shapes": [(256, 320)]}


def frozen_ones(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(("backbone.body.conv1.", "backbone.body.layer1."))]


def check_one_step_trains_all_parameters_but_the_first_stages() -> None:
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == frozen_ones(step.unchanged)
    assert len(step.unchanged) == 1 + 3 * 3 + 1, "the convolutions of the stem and of three blocks, and a shortcut"


def check_a_frozen_parameter_is_reported() -> None:
    name = "head.classification_head.cls_logits.bias"
    step = trials.one_step(checking.SUITE, frozen=name, **SMALLER)
    assert set(step.unchanged) - set(frozen_ones(step.unchanged)) == {name}
