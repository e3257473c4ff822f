"""BERT's reference scale: MLPerf's shards and checkpoint as published; a step of the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import h5py
import model
import torch

from tests.suites import trials
from tests.suites.damage import cut, put, remove
from tests.suites.tiny_data import bert_shards

SMALLER = {**bert_shards.SMALLER, "learning_rate": 0.1}
CUT = bert_shards.CUT
CHECKPOINT = "model.ckpt-28252.pt"
PARAMETERS = 336_226_108 + 6 * (1024 + 1)
"""BERT-large-uncased with both heads: 336 M in https://huggingface.co/google-bert/bert-large-uncased, here exactly by
the sizes in its ``config.json``. Our vocabulary has 30,528 tokens, not 30,522: six more weights of width 1024, and six
more biases of the head."""
STEP = {"train_batch_size": 1, "num_hidden_layers": 2}


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model."""
    bert_shards.write(path)
    torch.manual_seed(7)
    ctx = checking.context("reference", **SMALLER, init_checkpoint=None)
    torch.save({"model": model.create_model(ctx).net.state_dict()}, path / CHECKPOINT)


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_a_file_that_is_not_hdf5_is_named() -> None:
    TINY.damaged(put(CUT, "<html>not found</html>"), CUT, "cannot be read as HDF5")


def check_values_that_the_model_cannot_take_are_named() -> None:
    for key, value, words in [
        ("input_ids", 2048, "expected 0 to 2047"),
        ("masked_lm_positions", 512, "expected 0 to 511"),
        ("next_sentence_labels", -1, "expected 0 to 1"),
    ]:

        def change(path: Path, key: str = key, value: int = value) -> None:
            with h5py.File(path / CUT, "a") as file:
                file[key][0] = value

        TINY.damaged(change, CUT, f"{key} contains {value}", words)


def check_an_empty_folder_and_a_shard_without_a_key_are_named() -> None:
    def empty(path: Path) -> None:
        for file in (path / bert_shards.TRAIN).iterdir():
            file.unlink()

    def without(path: Path) -> None:
        with h5py.File(path / CUT, "a") as file:
            del file["masked_lm_ids"]

    TINY.damaged(empty, bert_shards.TRAIN, "no *.hdf5 files", "README.md")
    TINY.damaged(without, CUT, "missing masked_lm_ids")


def check_files_that_are_no_shards_are_ignored() -> None:
    path = TINY.folder("surplus")
    for name in (".DS_Store", "README.txt", "._part_0_of_3.hdf5"):
        (path / bert_shards.TRAIN / name).write_text("surplus")
    assert TINY.train(path, max_steps=2) == TINY.train(TINY.folder("without surplus"), max_steps=2)


def check_other_files_in_the_evaluation_folder_are_reported() -> None:
    def add(path: Path) -> None:
        file = path / bert_shards.EVAL
        file.with_name("eval_all.hdf5").write_bytes(file.read_bytes())

    words = "16 samples found in eval_all.hdf5 (8), part_eval_10k.hdf5 (8)", "num_eval_samples = 8"
    TINY.damaged(add, Path(bert_shards.EVAL).parent.name, *words)


def check_a_damaged_checkpoint_is_named() -> None:
    TINY.damaged(cut(CHECKPOINT, 2000), CHECKPOINT, "torch cannot read this file", "convert it again")
    TINY.damaged(remove(CHECKPOINT), CHECKPOINT, "file not found", "init_checkpoint")
