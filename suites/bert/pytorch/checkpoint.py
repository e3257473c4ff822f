"""Weights to start from: the library's own names, or those of the original's converted checkpoint."""

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
"""Other layouts of the same model: wrappers' prefixes, fused activations and attention, norms."""

TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
SHOWN = 8


class CheckpointError(ValueError):
    """The file does not hold this model's weights."""


def load_checkpoint(net: nn.Module, path: Path) -> None:
    """Load the file into the model, or say everything that does not fit."""
    wanted = {name: tensor for name, tensor in net.state_dict().items() if name not in TIED}
    found = read_weights(path)
    weights = {name: fit_rows(tensor, wanted[name]) for name, tensor in found.items() if name in wanted}
    problems = describe_misfits(wanted, found, weights)
    if problems:
        raise CheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    net.load_state_dict(weights, strict=False)  # the tied ones follow


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors by the library's names; nothing in the file is executed."""
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for key in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict of tensors by name")
    named = {rename(name): tensor for name, tensor in content.items()}
    return {name: tensor for name, tensor in named.items() if name not in TIED and name not in BUFFERS}


def rename(name: str) -> str:
    """Translate another layout's name to the library's."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def fit_rows(tensor: Tensor, wanted: Tensor) -> Tensor:
    """Round a vocabulary up to a multiple of 8, as ours is; leave every other misfit to be told."""
    missing = wanted.shape[0] - tensor.shape[0] if tensor.dim() and wanted.dim() else 0
    if tensor.shape[1:] != wanted.shape[1:] or not 0 < missing < 8 or wanted.shape[0] % 8:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


def describe_misfits(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> list[str]:
    """Name what is missing, what is not ours, and what has another shape."""
    shapes = [
        f"{name} is {tuple(tensor.shape)}, wanted {tuple(wanted[name].shape)}"
        for name, tensor in weights.items()
        if tensor.shape != wanted[name].shape
    ]
    named = [
        ("missing", sorted(set(wanted) - set(found))),
        ("unexpected", sorted(set(found) - set(wanted))),
        ("of another shape", shapes),
    ]
    return [f"{len(names)} {what}: {abridge(names)}" for what, names in named if names]


def abridge(names: list[str]) -> str:
    """Show the first few."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
