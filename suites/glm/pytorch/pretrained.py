"""Weights to start from: the published ``blocklm-large-blank/200000/mp_rank_00_model_states.pt``.

That file is a dictionary whose ``module`` holds the weights under the names that our model uses as well. Its position
tables may be shorter than ours; then the rows that it has are taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

_RECONSTRUCT = np._core.multiarray._reconstruct
HARMLESS = [
    argparse.Namespace,
    set,
    np.ndarray,
    np.dtype,
    type(np.dtype(np.uint32)),
    _RECONSTRUCT,
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),
]
"""What may stand beside the weights: the trainer's arguments, and numpy's random state, by its old name too."""

TABLES = ("transformer.position_embeddings.weight", "transformer.block_position_embeddings.weight")


class CheckpointError(ValueError):
    """The file cannot be used; the message lists every reason."""


def load(model: nn.Module, path: Path) -> None:
    weights = _read(path)
    own = model.state_dict()
    problems = [*_names(own, weights), *_shapes(own, weights)]
    if problems:
        raise CheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name][: tensor.shape[0]].copy_(tensor)


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such file; init_checkpoint names it relative to the data directory, "
            "None trains from random weights"
        )
    try:
        # Besides tensors only these are unpickled: a checkpoint must not run code.
        with torch.serialization.safe_globals(HARMLESS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path}: torch cannot read it: {error}") from error
    weights = content.get("module") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path}: no 'module' with the weights in it; found {found}")
    return weights


def _names(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    missing = [f"missing: {name}" for name in own if name not in weights]
    return missing + [f"unknown: {name}" for name in weights if name not in own]


def _shapes(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{name}: the file has {list(tensor.shape)}, the model {list(own[name].shape)}"
        for name, tensor in weights.items()
        if name in own and not _fits(name, own[name], tensor)
    ]


def _fits(name: str, own: Tensor, tensor: Tensor) -> bool:
    if name in TABLES:
        return tensor.shape[1:] == own.shape[1:] and tensor.shape[0] <= own.shape[0]
    return tensor.shape == own.shape
