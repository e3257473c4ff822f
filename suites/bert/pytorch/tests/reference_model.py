"""Checks of BERT's reference model: its size, and one optimizer step of two layers trains all parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 336_226_108
"""BERT-large-uncased with both heads: 336 M in https://huggingface.co/google-bert/bert-large-uncased, here exactly by
the sizes in its ``config.json``."""
ROUNDED_UP = 6 * (1024 + 1)
"""Our vocabulary has 30,528 tokens, not 30,522: six more weights of width 1024, and six more biases of the head."""


def check_the_model_has_all_parameters() -> None:
    assert trials.parameters(checking.SUITE) == PUBLISHED + ROUNDED_UP


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, train_batch_size=1, num_hidden_layers=2)
    assert math.isfinite(step.loss)
    assert step.unchanged == []
