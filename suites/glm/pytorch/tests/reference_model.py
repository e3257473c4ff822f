"""A check of GLM's reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 334_688_256
"""GLM-Large: 335 M in the table of https://github.com/THUDM/GLM, here exactly by the sizes of the published checkpoint:
24 layers of width 1024, 30,592 tokens, two tables of 513 positions."""
SMALLER = {"train_batch_size": 1, "max_candidates": 2, "synthetic_examples": 2, "num_layers": 2}
RATE = 1e-2
"""The rate of the first step is this divided by the steps of the warm-up. With the suite's own rate the step would be
too small to change a norm's weight of 1 in fp32."""


def check_the_model_has_all_parameters() -> None:
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, learning_rate=RATE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []
