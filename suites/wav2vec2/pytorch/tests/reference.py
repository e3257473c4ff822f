"""Wav2Vec2's reference scale: LibriSpeech's files and lists; size and a step of the full model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import checking
import data
import manifest
from common.speech.audio import AudioError

from tests.suites import trials
from tests.suites.tiny_data import librispeech

SMALLER = {
    "lengths": [3200, 6400], "samples_per_item": 19, "span": 3, "negatives": 5,
    "convolutions": [[16, 10, 5], *4 * [[16, 3, 2]], *2 * [[16, 2, 2]]], "layers": 1, "channels": 32,
    "inner_channels": 32, "heads": 2, "position_kernel": 4, "position_groups": 2, "codes": 8, "code_channels": 8,
    "projected_channels": 8, "dropout": 0.0, "layer_drop": 0.0, "train_batch_size": 6, "eval_batch_size": 2,
    "gradient_accumulation_steps": 1, "gumbel_first": 0.5, "penalty_weight": 50.0, "learning_rate": 1e-2,
    "lr_warmup": 0, "num_workers": 2,
}  # fmt: skip
CUT = librispeech.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, librispeech.write)
write = TINY.write
PARAMETERS = 95_044_608
"""Of fairseq's base model with its codebooks."""
STEP = {
    "train_batch_size": 1, "lengths": [16000], "samples_per_item": 49, "gradient_accumulation_steps": 1, "lr_warmup": 0,
}  # fmt: skip
FROZEN = "quantizer.codes"


def judge(trained: trials.Trained) -> None:
    assert trained.metrics.keys() == {"acc", "val_loss", "code_use"}


def check_a_list_names_its_folder_or_lies_in_it() -> None:
    folder = TINY.folder("lists")
    listed = manifest.read(folder / "dev-other.tsv", librispeech.RATE)
    assert listed.paths[0].is_file(), "the list's first line names a folder of another machine"
    (folder / "here.tsv").write_text(f"{folder / 'dev-other'}\n{listed.paths[0].name}\t3200\n")
    assert manifest.read(folder / "here.tsv", librispeech.RATE).paths[0].parent == folder / "dev-other"


def check_a_bad_line_is_named() -> None:
    for bad in ("clip.flac 3200", "clip.flac\tlong"):
        TINY.damaged(partial(_listing, bad), "train-full-960.tsv, line 2", "a tab")
    TINY.damaged(partial(_listing, ""), "train-full-960.tsv", "got none")


def _listing(line: str, path: Path) -> None:
    (path / "train-full-960.tsv").write_text(f"folder\n{line}\n" if line else "folder\n", encoding="utf-8")


def check_without_a_folder_the_message_says_what_to_pass() -> None:
    ctx = replace(checking.context("reference"), data_dir=None)
    checking.raises(AudioError, lambda: data.create_train_data(ctx), "data_dir is not set; pass --data-dir")
