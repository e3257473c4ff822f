"""Load initial weights with the library's names or with the names of FlagPerf's converted checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

RENAMED: list[tuple[str, str]] = [
    (r"^(module\.|bert_model_segment\.|heads_only_segment\.|net\.)+", ""),
    (r"\.dense_act\.", ".dense."),
    (r"\.multi_head_attention\.q_(weight|bias)$", r".self.query.\1"),
    (r"\.multi_head_attention\.k_(weight|bias)$", r".self.key.\1"),
    (r"\.multi_head_attention\.v_(weight|bias)$", r".self.value.\1"),
    (r"\.multi_head_attention\.out_proj_(weight|bias)$", r".output.dense.\1"),
    (r"\.attention\.layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
]
"""Patterns of names in other layouts of the same model (prefixes of wrappers, fused layers, norms), and ours."""

TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
MAX_LISTED = 8


class BertCheckpointError(ValueError):
    """The file does not contain this model's weights."""


def load_checkpoint(net: nn.Module, path: Path) -> None:
    """Load the file into the model, or raise an error with all differences."""
    expected = {name: tensor for name, tensor in net.state_dict().items() if name not in TIED}
    stored = read_weights(path)
    weights = {name: fit_rows(tensor, expected[name]) for name, tensor in stored.items() if name in expected}
    problems = describe_misfits(expected, stored, weights)
    if problems:
        raise BertCheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
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
    return {name: tensor for name, tensor in named.items() if name not in TIED and name not in BUFFERS}


def rename(name: str) -> str:
    """Translate another layout's name to the library's."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def fit_rows(tensor: Tensor, expected: Tensor) -> Tensor:
    """Pad the vocabulary to a multiple of 8, as in our model; return any other tensor unchanged."""
    missing = expected.shape[0] - tensor.shape[0] if tensor.dim() and expected.dim() else 0
    if tensor.shape[1:] != expected.shape[1:] or not 0 < missing < 8 or expected.shape[0] % 8:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


def describe_misfits(
    expected: Mapping[str, Tensor], stored: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> list[str]:
    """List missing weights, unexpected weights and weights of another shape."""
    shapes = [
        f"{name} has {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}"
        for name, tensor in weights.items()
        if tensor.shape != expected[name].shape
    ]
    groups = [
        ("missing", sorted(set(expected) - set(stored))),
        ("unexpected", sorted(set(stored) - set(expected))),
        ("of another shape", shapes),
    ]
    return [f"{len(names)} {kind}: {abridge(names)}" for kind, names in groups if names]


def abridge(names: list[str]) -> str:
    """Return the first few names and the number of the others."""
    more = f", and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
