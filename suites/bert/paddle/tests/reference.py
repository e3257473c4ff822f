"""BERT's reference scale: MLPerf's shards and a converted checkpoint; a step of the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import model
import numpy as np
import paddle

from tests.suites import trials
from tests.suites.damage import cut, remove
from tests.suites.tiny_data import bert_shards

SMALLER = {**bert_shards.SMALLER, "learning_rate": 0.02}
CUT = bert_shards.CUT
CHECKPOINT = "model.ckpt-28252.npz"
STEP = {"train_batch_size": 1, "num_hidden_layers": 2}
FROZEN = "bert.pooler.dense.weight"


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


def check_a_damaged_checkpoint_is_named() -> None:
    tiny = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)
    tiny.damaged(cut(CHECKPOINT, 2000), CHECKPOINT, "cannot be read as .npz", "convert it again")
    tiny.damaged(remove(CHECKPOINT), CHECKPOINT, "file not found", "init_checkpoint")
