"""Checks of WaveGlow's reference data: LJ Speech's files and lists are read and learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import checking
import data
import numpy as np
from checking import SCRATCH, SUITE
from common.shares import Draw
from common.speech import recordings
from common.speech.audio import AudioError

from tests.suites import trials
from tests.suites.tiny_data import ljspeech

SMALLER = {
    "flows": 4, "early_every": 2, "wavenet_layers": 2, "wavenet_channels": 16, "segment_length": 4800,
    "samples_per_item": 4800, "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 3e-3, "num_workers": 2,
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


def check_a_short_recording_is_padded_and_each_epoch_has_other_places() -> None:
    folder = TINY.folder("places")
    clips = recordings.Files([folder / ljspeech.SHORT, folder / CUT], ljspeech.RATE)
    reader = data.Reader(clips, 4800, seed=1)
    first, again, other = (reader[Draw(epoch, np.arange(2))].audio for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[1], other[1])
    assert np.abs(first[0, :4000]).max() > 0.2
    assert not first[0, 4000:].any()


def check_without_a_folder_the_message_says_what_to_pass() -> None:
    ctx = replace(checking.context("reference"), data_dir=None)
    checking.raises(AudioError, lambda: data.create_train_data(ctx), "data_dir is not set; pass --data-dir")
