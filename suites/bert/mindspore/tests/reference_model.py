"""Checks of BERT's reference model: its size, and one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking
import model

from tests.suites import trials

PUBLISHED = 336_226_108
"""BERT-large-uncased with both heads: 336 M in https://huggingface.co/google-bert/bert-large-uncased, here exactly by
the sizes in its ``config.json``."""
ROUNDED_UP = 6 * (1024 + 1)
"""Our vocabulary has 30,528 tokens, not 30,522: six more weights of width 1024, and six more biases of the head."""


def check_the_model_has_all_parameters() -> None:
    def parameters(layers: int) -> int:
        net = model.create_model(checking.context("reference", init_checkpoint=None, num_hidden_layers=layers))
        return sum(weight.size for weight in net.trainable_params())

    layers, one = checking.context("reference").config.num_hidden_layers, parameters(1)
    assert one + (layers - 1) * (parameters(2) - one) == PUBLISHED + ROUNDED_UP


def check_one_step_trains_all_parameters() -> None:
    """One layer: MindSpore compiles the graph of 24 for minutes."""
    step = trials.one_step(checking.SUITE, train_batch_size=1, num_hidden_layers=1)
    assert math.isfinite(step.loss)
    assert step.unchanged == []
    name = "bert.pooler.dense.weight"
    frozen = trials.one_step(checking.SUITE, frozen=name, train_batch_size=1, num_hidden_layers=1)
    assert step.parameters - frozen.parameters == 1024 * 1024, "the control: it is not trained"
