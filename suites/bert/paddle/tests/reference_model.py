"""Checks of BERT's reference model: its size, and one optimizer step of two layers trains all parameters."""

from __future__ import annotations

import math
from functools import cache

import checking

from tests.suites import trials

PUBLISHED = 336_226_108
"""BERT-large-uncased with both heads: 336 M in https://huggingface.co/google-bert/bert-large-uncased, here exactly by
the sizes in its ``config.json``."""
ROUNDED_UP = 6 * (1024 + 1)
"""Our vocabulary has 30,528 tokens, not 30,522: six more weights of width 1024, and six more biases of the head."""


@cache
def one_step(layers: int, frozen: str = "") -> trials.Step:
    return trials.one_step(checking.SUITE, frozen, train_batch_size=1, num_hidden_layers=layers)


def check_the_model_has_all_parameters() -> None:
    one, two = one_step(1).parameters, one_step(2).parameters
    layers = checking.context("reference").config.num_hidden_layers
    assert one + (layers - 1) * (two - one) == PUBLISHED + ROUNDED_UP


def check_one_step_trains_all_parameters() -> None:
    assert math.isfinite(one_step(2).loss)
    assert one_step(2).unchanged == []


def check_a_frozen_parameter_is_not_trained() -> None:
    frozen = one_step(1, "bert.pooler.dense.weight")
    assert one_step(1).parameters - frozen.parameters == 1024 * 1024
    assert frozen.unchanged == []
