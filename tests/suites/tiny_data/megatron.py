"""Megatron's preprocessed data: ``.bin`` with the tokens of all documents, ``.idx`` with their sizes and places."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

TRAIN, EVALUATION = "c4-train.en_6_text_document", "c4-validation-91205-samples.en_text_document"
"""Without .bin and .idx."""
VOCAB_SIZE = 64
SMALLER = {
    "vocab_size": VOCAB_SIZE, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "head_size": 8,
    "intermediate_size": 64, "init_std": 0.1, "max_seq_length": 32, "samples_per_item": 32, "eval_sequences": 20,
    "train_batch_size": 8, "eval_batch_size": 4, "gradient_accumulation_steps": 1, "learning_rate": 1e-2,
    "lr_warmup": 0, "parallel": "ddp", "num_workers": 0, "eval_samples": None,
}  # fmt: skip
"""The config of a decoder that learns these documents in a few seconds."""
STEP = {
    "train_batch_size": 1, "max_seq_length": 32, "num_layers": 2, "gradient_accumulation_steps": 1, "hidden_size": 256,
    "head_size": 8, "intermediate_size": 512, "vocab_size": 1000, "learning_rate": 1.0, "parallel": "ddp",
}  # fmt: skip
"""The config of one step of a decoder. The rate of the first step is a share of this; with a suite's own rate the step
would be too small to change a norm's weight of 1 in fp32."""
TYPES = {"<i4": 4, "<u2": 8}


def write(folder: Path) -> None:
    """Write documents of counted tokens: each token follows from the one before it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for name, count in ((TRAIN, 160), (EVALUATION, 40)):
        documents = zip(rng.integers(0, VOCAB_SIZE, count), rng.integers(1, 90, count), strict=True)
        write_documents(folder / name, [(start + np.arange(size)) % VOCAB_SIZE for start, size in documents])


def write_documents(prefix: Path, documents: Sequence[npt.NDArray[np.int64]], kind: str = "<i4") -> None:
    """Write documents of one sequence each."""
    prefix.with_name(f"{prefix.name}.bin").write_bytes(np.concatenate(documents).astype(kind).tobytes())
    write_index(prefix, np.array([len(document) for document in documents]), kind)


def write_index(prefix: Path, sizes: npt.NDArray[np.int64], kind: str = "<i4") -> None:
    """Write the index of documents of these numbers of tokens."""
    with prefix.with_name(f"{prefix.name}.idx").open("wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, TYPES[kind], len(sizes), len(sizes) + 1))
        file.write(sizes.astype("<i4").tobytes())
        file.write(((np.cumsum(sizes) - sizes) * np.dtype(kind).itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
