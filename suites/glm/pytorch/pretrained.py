"""Load the published initial weights, ``blocklm-large-blank/200000/mp_rank_00_model_states.pt``.

The file is a dictionary whose ``module`` contains the weights, with the same names as in our model. Its position tables
may be shorter than ours; then only their rows are loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

_RECONSTRUCT = np._core.multiarray._reconstruct
ALLOWED_TYPES = [
    argparse.Namespace,
    set,
    np.ndarray,
    np.dtype,
    type(np.dtype(np.uint32)),
    _RECONSTRUCT,
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),
]
"""Types of other values in the file: the trainer's arguments, and numpy's random state, with its old name too."""

TABLES = ("transformer.position_embeddings.weight", "transformer.block_position_embeddings.weight")


class GlmCheckpointError(ValueError):
    """The file cannot be loaded; the message lists all problems."""


def load(model: nn.Module, path: Path) -> None:
    weights = _read(path)
    own = model.state_dict()
    problems = [*_names(own, weights), *_shapes(own, weights)]
    if problems:
        raise GlmCheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name][: tensor.shape[0]].copy_(tensor)


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise GlmCheckpointError(
            f"{path}: file not found; init_checkpoint is a path relative to the data directory, "
            "or None to start from random weights"
        )
    try:
        # Only tensors and these types are unpickled, because a checkpoint must not run code.
        with torch.serialization.safe_globals(ALLOWED_TYPES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise GlmCheckpointError(f"{path}: torch cannot read this file: {error}") from error
    weights = content.get("module") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise GlmCheckpointError(f"{path}: no 'module' with the weights; found {got}")
    return weights


def _names(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    missing = [f"missing: {name}" for name in own if name not in weights]
    return missing + [f"unknown: {name}" for name in weights if name not in own]


def _shapes(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{name} has shape {list(tensor.shape)}; expected {list(own[name].shape)}"
        for name, tensor in weights.items()
        if name in own and not _fits(name, own[name], tensor)
    ]


def _fits(name: str, own: Tensor, tensor: Tensor) -> bool:
    if name in TABLES:
        return tensor.shape[1:] == own.shape[1:] and tensor.shape[0] <= own.shape[0]
    return tensor.shape == own.shape
