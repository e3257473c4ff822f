"""Checks of Tacotron 2's reference model: its size, its FLOPs, and one optimizer step."""

from __future__ import annotations

import math
import re

import checking

from tests.suites import trials

PARAMETERS = 28_193_153
"""Of NVIDIA's model, which FlagPerf uses."""
SMALLER = {"train_batch_size": 1, "max_frames": 30, "max_symbols": 16, "samples_per_item": 30}


def flops_of_a_frame(symbols: int, frames: int) -> float:
    """Return twice the multiplications of a forward pass, divided by the frames."""
    encoder = 3 * 512 * 512 * 5 + 2 * 4 * 256 * (512 + 256)
    keys = 512 * 128
    attention = 2 * 32 * 31 + 32 * 128 + 128 + 512  # for each symbol: place, energy and context
    cells = 4 * 1024 * (256 + 512 + 1024) + 1024 * 128 + 4 * 1024 * (1024 + 512 + 1024)
    steps = math.ceil(frames / 20) * 20  # the last graph has as many steps as the others
    outputs = 80 * 256 + 256 * 256 + 1536 * (80 + 1)
    postnet = 5 * (80 * 512 + 3 * 512 * 512 + 512 * 80)
    total = symbols * (encoder + keys) + steps * (symbols * attention + cells) + frames * (outputs + postnet)
    return 2 * total / frames


def check_the_flops_are_those_of_the_formula() -> None:
    toml = (checking.SUITE / "suite.toml").read_text(encoding="utf-8")
    declared = float(re.search(r"flops_per_sample = (\S+)", toml).group(1))  # type: ignore[union-attr]
    assert abs(declared / (3 * flops_of_a_frame(192, 872)) - 1) < 1e-3
    assert abs(declared / (3 * flops_of_a_frame(160, 872)) - 1) > 1e-3, "the control: another length"


def check_one_step_trains_all_parameters() -> None:
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    assert step.unchanged == []


def check_a_frozen_parameter_is_reported() -> None:
    step = trials.one_step(checking.SUITE, frozen="steps.query.weight", **SMALLER)
    assert step.unchanged == ["steps.query.weight"]
