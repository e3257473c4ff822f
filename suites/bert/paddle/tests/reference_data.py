"""Checks of BERT's reference data: MLPerf's shards and a converted checkpoint are read; damaged files are reported."""

from __future__ import annotations

from pathlib import Path

import checking
import model
import numpy as np
import paddle

from tests.suites import trials
from tests.suites.tiny_data import bert_shards

SMALLER = {
    "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_dropout_prob": 0.0, "train_batch_size": 4, "eval_batch_size": 4, "learning_rate": 0.02,
    "num_eval_samples": bert_shards.EVAL_ROWS, "lr_schedule": "constant",
}  # fmt: skip
CUT = f"{bert_shards.TRAIN}/part_1_of_3.hdf5"
CHECKPOINT = "model.ckpt-28252.npz"


def stored(net: paddle.nn.Layer) -> dict[str, np.ndarray]:
    """Return the model's weights as PyTorch stores them."""
    linear = {f"{name}.weight" for name, layer in net.named_sublayers() if isinstance(layer, paddle.nn.Linear)}
    return {name: value.numpy().T if name in linear else value.numpy() for name, value in net.state_dict().items()}


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model."""
    bert_shards.write(path)
    paddle.seed(7)
    ctx = checking.context("reference", **SMALLER, init_checkpoint=None)
    np.savez(path / CHECKPOINT, **stored(model.create_model(ctx)))


TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)


def check_shards_are_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("shards"))


def check_a_cut_shard_is_named() -> None:
    def cut(path: Path) -> None:
        (path / CUT).write_bytes((path / CUT).read_bytes()[:4000])

    TINY.damaged(cut, CUT, "cannot be read as HDF5", "copy the file again")


def check_a_damaged_checkpoint_is_named() -> None:
    def cut(path: Path) -> None:
        (path / CHECKPOINT).write_bytes((path / CHECKPOINT).read_bytes()[:-2000])

    TINY.damaged(cut, CHECKPOINT, "cannot be read as .npz", "convert it again")
    TINY.damaged(lambda path: (path / CHECKPOINT).unlink(), CHECKPOINT, "file not found", "init_checkpoint")
