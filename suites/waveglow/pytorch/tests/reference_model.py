"""Checks of WaveGlow's reference model: its size, and what the first optimizer step trains."""

from __future__ import annotations

import math
import re

import checking

from tests.suites import trials

PARAMETERS = 268_294_760
"""Computed by hand from the published sizes: 12 flows of a WaveNet with 8 layers of 512 channels."""
SMALLER = {"train_batch_size": 1, "segment_length": 1024, "samples_per_item": 1024}


def by_hand() -> int:
    """Add up the parameters of the published sizes."""
    mels, group, layers, width, kernel = 80, 8, 8, 512, 3
    total = mels * mels * 1024 + mels  # upsampling
    for flow in range(12):
        channels = group - flow // 4 * 2
        half = channels // 2
        total += channels * channels
        total += width * half + 2 * width  # weight normalisation adds a factor for each output channel
        total += layers * (2 * width * mels * group + 2 * 2 * width)
        total += layers * (2 * width * width * kernel + 2 * 2 * width)
        total += (layers - 1) * (2 * width * width + 2 * 2 * width) + width * width + 2 * width
        total += 2 * half * width + 2 * half
    return total


def check_the_sizes_are_the_published_ones() -> None:
    assert by_hand() == PARAMETERS


def check_the_first_step_trains_the_mixings_and_the_last_convolutions() -> None:
    """The last convolution of each flow starts at 0: in the first step, no gradient reaches what is before it."""
    step = trials.one_step(checking.SUITE, **SMALLER)
    assert math.isfinite(step.loss)
    assert step.parameters == PARAMETERS
    before_the_last = re.compile(r"upsample\.|wavenets\.\d+\.(start|conditions|gates|outputs)\.")
    assert all(before_the_last.match(name) for name in step.unchanged), step.unchanged


def check_a_frozen_parameter_is_reported() -> None:
    step = trials.one_step(checking.SUITE, frozen="mixings.0.weight", **SMALLER)
    assert "mixings.0.weight" in step.unchanged
