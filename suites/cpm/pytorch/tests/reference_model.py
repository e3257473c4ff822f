"""Checks of CPM's reference model: its size, and one optimizer step of two layers trains all parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 334_080_000
"""CPM-medium: 0.33 billion in https://github.com/TsinghuaAI/CPM-1-Generate, here exactly by GPT-2's sizes:
24 layers of 12 x 1024 x 1024 weights and 13 x 1024 biases and norms, 30,000 tokens, 1024 positions, the last norm."""
SMALLER = {"train_batch_size": 1, "seq_length": 16, "num_layers": 2}
RATE = 1.0
"""The rate of the first step is this divided by the 800 steps of the warm-up; with the suite's own rate the step would
be too small to change a norm's weight of 1 in fp32."""


def check_the_model_has_all_parameters() -> None:
    assert PUBLISHED == 24 * (12 * 1024 + 13) * 1024 + (30_000 + 1024 + 2) * 1024
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, learning_rate=RATE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []
