"""Checks of the reference model: its size, whole and active, and one step of two layers trains all parameters."""

from __future__ import annotations

import math

import checking

from tests.suites import trials

PUBLISHED = 20_914_757_184
"""https://huggingface.co/openai/gpt-oss-20b, here exactly by the sizes in its ``config.json``: "21B parameters"."""
ACTIVE = 3_608_307_264
"""Of one token, without the embedding: "3.6B active parameters"."""
SMALLER = {"train_batch_size": 1, "max_seq_length": 160, "num_layers": 2, "loss_chunk": 100, "parallel": "ddp"}
SMALLER |= {"hidden_size": 64, "head_size": 8, "intermediate_size": 32, "vocab_size": 1000, "num_experts": 4}
SMALLER |= {"num_heads": 8, "num_kv_heads": 2}
RATE = 1.0
"""The rate of the first step is a share of this; with the suite's own rate the step would be too small to change a
norm's weight of 1 in fp32."""


def check_the_model_has_all_parameters() -> None:
    table, norm = 201_088 * 2880, 2880
    attention = 2 * 2880 * 4096 + 2 * 2880 * 512 + (4096 + 2 * 512 + 2880) + 64  # products, biases, sinks
    expert = 2880 * 2 * 2880 + 2 * 2880 + 2880 * 2880 + 2880
    router = 2880 * 32 + 32
    assert 2 * table + 24 * (attention + router + 32 * expert + 2 * norm) + norm == PUBLISHED
    assert table + 24 * (attention + router + 4 * expert + 2 * norm) + norm == ACTIVE
    assert trials.parameters(checking.SUITE) == PUBLISHED


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, learning_rate=RATE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.unchanged == []


def check_a_frozen_router_is_found() -> None:
    """The control: a router that does not learn."""
    router = "blocks.0.mixture.router.weight"
    step = trials.one_step(checking.SUITE, frozen=router, learning_rate=RATE, **SMALLER)
    assert step.unchanged == [router]
