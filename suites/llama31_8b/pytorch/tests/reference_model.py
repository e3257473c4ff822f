"""Checks of the reference model: its size, and one step of two layers trains all parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 8_030_261_248
"""https://huggingface.co/meta-llama/Llama-3.1-8B, here exactly by the sizes in its ``config.json``."""
SMALLER = {"train_batch_size": 1, "max_seq_length": 32, "num_layers": 2, "gradient_accumulation_steps": 1}
SMALLER |= {"hidden_size": 256, "head_size": 8, "intermediate_size": 512, "vocab_size": 1000}
RATE = 1.0
"""The rate of the first step is a share of this; with the suite's own rate the step would be too small to change a
norm's weight of 1 in fp32."""


def check_the_model_has_all_parameters() -> None:
    table, block, norm = 128_256 * 4096, 218_112_000, 4096
    assert 2 * table + 32 * block + norm == PUBLISHED
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, learning_rate=RATE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []
