"""Load initial weights from a file of numpy arrays; linear layers are stored (outputs, inputs), as PyTorch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from common.language.bert_weights import BertCheckpointError, is_needed, misfits, missing_rows, rename
from paddle import nn


def load_checkpoint(model: nn.Layer, path: Path) -> None:
    """Load the file into the model, or raise an error with all differences."""
    transposed = {f"{name}.weight" for name, layer in model.named_sublayers() if isinstance(layer, nn.Linear)}
    expected = {
        name: tuple(reversed(tensor.shape) if name in transposed else tensor.shape)
        for name, tensor in model.state_dict().items()
    }
    stored = read_weights(path)
    problems = misfits(expected, {name: array.shape for name, array in stored.items()})
    if problems:
        raise BertCheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    weights = {name: padded(array, missing_rows(array.shape, expected[name])) for name, array in stored.items()}
    model.set_state_dict({name: array.T if name in transposed else array for name, array in weights.items()})


def read_weights(path: Path) -> dict[str, Any]:
    """Read the arrays by transformers' names, without executing code from the file."""
    if not path.is_file():
        raise BertCheckpointError(f"{path}: file not found; init_checkpoint is a path relative to the data directory")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {rename(name): file[name] for name in file.files}
    except Exception as error:  # numpy and zipfile raise several types for a damaged file
        raise BertCheckpointError(f"{path}: cannot be read as .npz: {error}; convert it again (README.md)") from error
    return {name: array for name, array in arrays.items() if is_needed(name)}


def padded(array: Any, rows: int) -> Any:
    """Return the array with so many further rows of zeros."""
    return np.pad(array, [(0, rows), *[(0, 0)] * (array.ndim - 1)]) if rows else array
