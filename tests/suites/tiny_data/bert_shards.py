"""MLPerf's BERT data: HDF5 files of fixed length, with the names and types of the programs in MLPerf's repository.

``chop_hdf5_files.py`` writes ``part_<i>_of_<n>.hdf5`` without compression: i4 for tokens and positions, i1 for the
others. ``pick_eval_samples.py`` writes the evaluation file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

TRAIN, EVAL = "2048_shards_uncompressed", "eval_set_uncompressed/part_eval_10k.hdf5"
SHARDS, ROWS, EVAL_ROWS = 3, 6, 8
LENGTH, PREDICTIONS = 512, 76
CLS, SEP, MASK = 101, 102, 103
FIRST, WORDS = 1996, 12
"""The first token of the text ("the") and the number of different tokens."""
TYPES = {
    "input_ids": "i4", "input_mask": "i1", "segment_ids": "i1", "masked_lm_positions": "i4", "masked_lm_ids": "i4",
    "next_sentence_labels": "i1",
}  # fmt: skip
SMALLER = {
    "vocab_size": 2048, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_dropout_prob": 0.0, "train_batch_size": 4, "eval_batch_size": 4, "num_eval_samples": EVAL_ROWS,
    "lr_schedule": "constant",
}  # fmt: skip
"""The config of a model that learns these shards in a few seconds."""
CUT = f"{TRAIN}/part_1_of_3.hdf5"


def write(folder: Path) -> None:
    """Write the training shards and the evaluation file."""
    rng = np.random.default_rng(7)
    for shard in range(SHARDS):
        write_file(folder / TRAIN / f"part_{shard}_of_{SHARDS}.hdf5", ROWS, rng)
    write_file(folder / EVAL, EVAL_ROWS, rng)


def write_file(path: Path, rows: int, rng: np.random.Generator) -> None:
    """Write sequences of repeated words, so that a masked word can be guessed from its neighbours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {key: np.zeros((rows, LENGTH), int) for key in ("input_ids", "input_mask", "segment_ids")}
    arrays |= {key: np.zeros((rows, PREDICTIONS), int) for key in ("masked_lm_positions", "masked_lm_ids")}
    arrays["next_sentence_labels"] = rng.integers(0, 2, rows)
    for row in range(rows):
        words = int(rng.integers(40, LENGTH - 3))  # short sequences are padded with zeros, also their predictions
        text = np.concatenate([[CLS], np.full(words, FIRST + rng.integers(0, WORDS)), [SEP]])
        text[words // 2] = SEP
        candidates = np.flatnonzero(text >= FIRST)
        count = min(PREDICTIONS, max(1, round(0.15 * len(text))))
        masked = np.sort(rng.choice(candidates, count, replace=False))
        arrays["masked_lm_positions"][row, :count], arrays["masked_lm_ids"][row, :count] = masked, text[masked]
        text[masked] = MASK
        arrays["input_ids"][row, : len(text)] = text
        arrays["input_mask"][row, : len(text)] = 1
        arrays["segment_ids"][row, words // 2 + 1 : len(text)] = 1
    with h5py.File(path, "w") as file:
        for key, kind in TYPES.items():
            file.create_dataset(key, data=arrays[key], dtype=kind)
