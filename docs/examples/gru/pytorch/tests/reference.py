"""The reference scale: MNIST's files are read as published, damaged files are reported; a step of the full model."""

from __future__ import annotations

from pathlib import Path

import checking
import numpy as np

from tests.suites import trials
from tests.suites.damage import remove

SMALLER = {"width": 64, "train_batch_size": 16, "eval_batch_size": 8, "learning_rate": 0.02}
CUT = "train-images-idx3-ubyte"
STEP = {"train_batch_size": 16}
PARAMETERS = 3 * 128 * (28 + 128 + 2) + 10 * (128 + 1)
"""Three gates with weights for input and state and two biases, and the scores; name the published number here."""
FROZEN = "scores.bias"


def write(folder: Path) -> None:
    """Write MNIST's four files with a few pictures: the row with the pixels is the label."""
    rng = np.random.default_rng(7)
    for name, count in (("train", 64), ("t10k", 16)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        pixels = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        pixels[np.arange(count), 27 - labels] = 255
        for rest, values in (("images-idx3-ubyte", pixels), ("labels-idx1-ubyte", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}-{rest}").write_bytes(head + values.tobytes())


def check_other_files_are_named() -> None:
    def compress(path: Path) -> None:
        (path / CUT).write_bytes(b"\x1f\x8b" + (path / CUT).read_bytes())

    tiny = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, write)
    tiny.damaged(compress, CUT, "not an IDX file", "gunzip")
    tiny.damaged(remove(CUT), CUT, "No such file", "copy MNIST's four files")
