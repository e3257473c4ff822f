"""The names of BERT's weights, in transformers and in FlagPerf's converted checkpoint; a file's misfits by name."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
"""Patterns of names in other layouts of the same model (wrappers, fused layers, norms), and transformers'."""

TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
MAX_LISTED = 8


Shape = tuple[int, ...]


class BertCheckpointError(ValueError):
    """The file does not contain the model's weights."""


def rename(name: str) -> str:
    """Translate another layout's name to the name in transformers."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def is_needed(name: str) -> bool:
    """Return False for values that follow from others."""
    return name not in TIED and name not in BUFFERS


def missing_rows(shape: Shape, expected: Shape) -> int:
    """Return how many rows of the vocabulary, which the model rounds up to a multiple of 8, a weight lacks."""
    missing = expected[0] - shape[0] if shape and expected else 0
    return missing if shape[1:] == expected[1:] and 0 < missing < 8 and expected[0] % 8 == 0 else 0


def misfits(expected: Mapping[str, Shape], stored: Mapping[str, Shape]) -> list[str]:
    """List missing weights, unexpected weights and weights of another shape."""
    shapes = [
        f"{name} has {shape}, expected {expected[name]}"
        for name, shape in stored.items()
        if name in expected and shape != expected[name] and not missing_rows(shape, expected[name])
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
