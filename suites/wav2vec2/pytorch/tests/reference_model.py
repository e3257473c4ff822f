"""Checks of Wav2Vec2's reference model: its size, and one optimizer step."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PARAMETERS = 95_044_608
"""Of fairseq's base model with its codebooks."""
SMALLER = {
    "train_batch_size": 1, "lengths": [16000], "samples_per_item": 49, "gradient_accumulation_steps": 1, "lr_warmup": 0,
}  # fmt: skip


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    step = trials.one_step(checking.SUITE, frozen="quantizer.codes", **SMALLER)
    assert step.unchanged == ["quantizer.codes"]
