"""Checks of Tacotron 2's reference data: LJ Speech's files and lists are read and learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import checking
import data
import numpy as np
import text
from checking import SCRATCH, SUITE
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
TINY = trials.TinyData(SUITE, SCRATCH, SMALLER, ljspeech.write)
write = TINY.write


def check_recordings_are_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("ljspeech"))


def check_a_cut_recording_is_named() -> None:
    def cut(path: Path) -> None:
        content = (path / CUT).read_bytes()
        (path / CUT).write_bytes(content[: len(content) // 2])

    TINY.damaged(cut, Path(CUT).name, "cut short", "copy the file again")


def check_a_recording_that_is_missing_is_named() -> None:
    TINY.damaged(lambda path: (path / CUT).unlink(), Path(CUT).name, "no such file")


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
