"""Tacotron 2's reference scale: LJ Speech's files and lists; size, FLOPs and a step of the full model."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import checking
import data
import numpy as np
import text
from common.shares import Draw
from common.speech.audio import AudioError

from tests.suites import trials
from tests.suites.tiny_data import ljspeech

SMALLER = {
    "encoder_channels": 16, "attention_channels": 8, "location_filters": 4, "prenet_channels": 8,
    "decoder_channels": 16, "postnet_channels": 16, "max_frames": 50, "max_symbols": 40, "samples_per_item": 50,
    "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 3e-2, "num_workers": 2,
}  # fmt: skip
CUT = ljspeech.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, ljspeech.write)
write = TINY.write
PARAMETERS = 28_193_153
"""Of NVIDIA's model, which FlagPerf uses."""
STEP = {"train_batch_size": 1, "max_frames": 30, "max_symbols": 16, "samples_per_item": 30}
FROZEN = "steps.query.weight"


def check_texts_and_recordings_belong_together() -> None:
    source = data._source(
        replace(checking.context("reference", **SMALLER), data_dir=TINY.folder("texts")), training=True
    )
    read = source[Draw(0, np.arange(2))]
    words = ["".join(text.SYMBOLS[number] for number in one) for one in read.text]
    assert [one.rstrip("_") for one in words] == [ljspeech.text(f"LJ001-000{number}").lower() for number in (1, 2)]
    assert read.frames.tolist() == [1 + source.recordings.samples(index) // 256 for index in (0, 1)]


def check_without_a_folder_the_message_says_what_to_pass() -> None:
    ctx = replace(checking.context("reference"), data_dir=None)
    checking.raises(AudioError, lambda: data.create_train_data(ctx), "data_dir is not set; pass --data-dir")


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
