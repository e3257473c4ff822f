"""Checks of the reference model: one optimizer step trains all of its parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 210_808_832
"""The parameters that fairseq reports for ``transformer_wmt_en_de_big_t2t`` with this dictionary: 33,712 words of 1024;
in each layer of the encoder 4 x 1024^2 (attention), 2 x 4096 x 1024 + 4096 + 1024 and two norms; in each of the
decoder 8 x 1024^2, the same and three norms; two last norms."""
SMALLER = {"train_batch_size": 1, "layers": 2, "learning_rate": 1e-2, "lr_warmup": 1}
"""Two layers, and a rate whose step changes a norm's weight of 1 in fp32."""


def check_the_model_has_all_parameters() -> None:
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    name = "decoder_norm.bias"
    assert trials.one_step(checking.SUITE, frozen=name, **SMALLER).unchanged == [name]
