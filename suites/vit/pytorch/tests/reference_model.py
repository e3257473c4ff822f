"""Checks of ViT-B/16's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 86_567_656
"""num_params of torchvision's ``ViT_B_16_Weights.IMAGENET1K_V1``."""


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, train_batch_size=2, gradient_accumulation_steps=1, weight_init="")
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_the_first_step_trains_the_head_only_if_it_begins_with_zeros() -> None:
    step = trials.one_step(checking.SUITE, train_batch_size=2, gradient_accumulation_steps=1, depth=1)
    assert "blocks.0.attn.qkv.bias" in step.unchanged, "weight decay does not change zeros, a gradient does"
    assert not {"head.weight", "head.bias"} & {*step.unchanged}
