"""Load initial weights with the library's names or with the names of FlagPerf's converted checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from common.language.bert_weights import TIED, BertCheckpointError, is_needed, misfits, missing_rows, rename
from torch import Tensor, nn


def load_checkpoint(net: nn.Module, path: Path) -> None:
    """Load the file into the model, or raise an error with all differences."""
    expected = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items() if name not in TIED}
    stored = read_weights(path)
    problems = misfits(expected, {name: tuple(tensor.shape) for name, tensor in stored.items()})
    if problems:
        raise BertCheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    weights = {
        name: padded(tensor, missing_rows(tuple(tensor.shape), expected[name])) for name, tensor in stored.items()
    }
    net.load_state_dict(weights, strict=False)  # strict=False: tied weights are not in the file


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors by the library's names, without executing code from the file."""
    if not path.is_file():
        raise BertCheckpointError(f"{path}: file not found; init_checkpoint is a path relative to the data directory")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises several types for a damaged file
        raise BertCheckpointError(f"{path}: torch cannot read this file: {error}; convert it again") from error
    for key in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BertCheckpointError(f"{path}: expected a state dict of tensors by name; got a {type(content).__name__}")
    named = {rename(name): tensor for name, tensor in content.items()}
    return {name: tensor for name, tensor in named.items() if is_needed(name)}


def padded(tensor: Tensor, rows: int) -> Tensor:
    """Return the tensor with so many further rows of zeros."""
    return torch.cat([tensor, tensor.new_zeros((rows, *tensor.shape[1:]))]) if rows else tensor
