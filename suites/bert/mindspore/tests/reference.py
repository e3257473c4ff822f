"""BERT's reference scale: MLPerf's shards and a checkpoint; a step of one layer of the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import mindspore as ms
import model

from tests.suites import trials
from tests.suites.damage import cut, remove
from tests.suites.tiny_data import bert_shards

SMALLER = {**bert_shards.SMALLER, "learning_rate": 0.02}
CUT = bert_shards.CUT
CHECKPOINT = "ms_bert_large.ckpt"
STEP = {"train_batch_size": 1, "num_hidden_layers": 1}
"""MindSpore compiles the graph of 24 layers for minutes."""
FROZEN = "bert.pooler.dense.weight"


def write(path: Path) -> None:
    """Write the tiny data directory, with a checkpoint of the smaller model."""
    bert_shards.write(path)
    ms.set_seed(7)
    net = model.create_model(checking.context("reference", **SMALLER, init_checkpoint=None))
    ms.save_checkpoint(net, str(path / CHECKPOINT))
    (path / CHECKPOINT).chmod(0o600)  # MindSpore writes it without the right to change it


def check_a_damaged_checkpoint_is_named() -> None:
    tiny = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)
    tiny.damaged(cut(CHECKPOINT, 2000), CHECKPOINT, "cannot be read as a checkpoint", "copy the file again")
    tiny.damaged(remove(CHECKPOINT), CHECKPOINT, "file not found", "init_checkpoint")
