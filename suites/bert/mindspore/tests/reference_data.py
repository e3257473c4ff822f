"""Checks of BERT's reference data: MLPerf's shards and a checkpoint are read; damaged files are reported."""

from __future__ import annotations

from pathlib import Path

import checking
import mindspore as ms
import model

from tests.suites import trials
from tests.suites.tiny_data import bert_shards

SMALLER = {
    "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_dropout_prob": 0.0, "train_batch_size": 4, "eval_batch_size": 4, "learning_rate": 0.02,
    "num_eval_samples": bert_shards.EVAL_ROWS, "lr_schedule": "constant",
}  # fmt: skip
CUT = f"{bert_shards.TRAIN}/part_1_of_3.hdf5"
CHECKPOINT = "ms_bert_large.ckpt"


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model."""
    bert_shards.write(path)
    ms.set_seed(7)
    net = model.create_model(checking.context("reference", **SMALLER, init_checkpoint=None))
    ms.save_checkpoint(net, str(path / CHECKPOINT))


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_shards_are_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("shards"))


def check_a_cut_shard_is_named() -> None:
    def cut(path: Path) -> None:
        (path / CUT).write_bytes((path / CUT).read_bytes()[:4000])

    TINY.damaged(cut, CUT, "cannot be read as HDF5", "copy the file again")


def check_a_damaged_checkpoint_is_named() -> None:
    def cut(path: Path) -> None:
        file = path / CHECKPOINT
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:-2000])

    TINY.damaged(cut, CHECKPOINT, "cannot be read as a checkpoint", "copy the file again")
    TINY.damaged(lambda path: (path / CHECKPOINT).unlink(), CHECKPOINT, "file not found", "init_checkpoint")
