"""Load initial weights from MindSpore's checkpoint files, under the names of the maker's BERT or of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from common.language.bert_weights import BertCheckpointError, is_needed, misfits, missing_rows, rename
from mindspore import nn

NAMES: list[tuple[str, str]] = [
    (r"^bert\.bert\.", "bert."),
    (r"^bert\.cls1\.output_bias$", "cls.predictions.bias"),
    (r"^bert\.cls1\.", "cls.predictions.transform."),
    (r"^bert\.cls2\.dense\.", "cls.seq_relationship."),
    (r"^bert\.dense\.", "bert.pooler.dense."),
    (r"\.bert_embedding_lookup\.", ".embeddings.word_embeddings."),
    (r"\.bert_embedding_postprocessor\.full_position_embedding(s|\.embedding_table)$",
     ".embeddings.position_embeddings.weight"),
    (r"\.bert_embedding_postprocessor\.(token_type_embedding\.)?embedding_table$",
     ".embeddings.token_type_embeddings.weight"),
    (r"\.bert_embedding_postprocessor\.", ".embeddings."),
    (r"\.bert_encoder\.layers\.", ".encoder.layer."),
    (r"\.attention\.attention\.(query|key|value)_layer\.", r".attention.self.\1."),
    (r"\.attention\.(query|key|value)\.", r".attention.self.\1."),
    (r"\.intermediate\.(weight|bias)$", r".intermediate.dense.\1"),
    (r"\.layernorm\.", ".LayerNorm."),
    (r"\.embedding_table$", ".weight"),
]  # fmt: skip
"""Patterns of names in the maker's BERT, old and new, and in our model; the names in transformers."""


def load_checkpoint(model: nn.Cell, path: Path) -> None:
    """Load the file into the model, or raise an error with all differences."""
    load_weights(model, read_weights(path), path)


def load_weights(model: nn.Cell, stored: Mapping[str, Any], path: Path) -> None:
    """Set the weights to these arrays, which have transformers' names; ``path`` is the file for error messages."""
    weights = {standard(weight.name): weight for weight in model.trainable_params()}
    expected = {name: tuple(weight.shape) for name, weight in weights.items()}
    problems = misfits(expected, {name: array.shape for name, array in stored.items()})
    if problems:
        raise BertCheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    for name, array in stored.items():
        rows = missing_rows(array.shape, expected[name])
        padded = np.pad(array, [(0, rows), *[(0, 0)] * (array.ndim - 1)]) if rows else array
        weights[name].set_data(ms.Tensor(padded, ms.float32))


def read_weights(path: Path) -> dict[str, Any]:
    """Read the weights by transformers' names; what else the file has, such as an optimizer's state, is left out."""
    if not path.is_file():
        raise BertCheckpointError(f"{path}: file not found; init_checkpoint is a path relative to the data directory")
    try:
        arrays = {name: weight.asnumpy() for name, weight in ms.load_checkpoint(str(path)).items()}
    except Exception as error:  # MindSpore raises several types for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BertCheckpointError(
            f"{path}: cannot be read as a checkpoint of MindSpore: {reason}; copy the file again"
        ) from error
    return with_standard_names(arrays)


def with_standard_names(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's weights among the arrays by transformers' names."""
    named = {standard(name): array for name, array in arrays.items()}
    return {name: array for name, array in named.items() if name.startswith(("bert.", "cls.")) and is_needed(name)}


def standard(name: str) -> str:
    """Translate a name in the maker's BERT or in our model to the name in transformers."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return rename(name)
