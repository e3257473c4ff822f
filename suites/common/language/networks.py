"""Parts of language models: the layers of a Transformer with the norms first, and their published weights."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch.steps import compile_methods

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
"""Types of other values in a checkpoint: the trainer's arguments, and numpy's random state, with its old name too."""


class CheckpointError(ValueError):
    """The file cannot be loaded; the message lists all problems."""


class _Chosen(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Rows of a matrix, each at most once: the gradient is copied to its row, which is faster than to add it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return placed(gradient, rows, ctx.count), None


def placed(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return a matrix of so many rows, with x at these rows and zeros elsewhere."""
    return x.new_zeros(count, x.shape[1]).index_copy(0, rows, x)


class Attention(nn.Module):
    """Attention of a text to itself: to what the mask allows; without a mask, to the token itself and those before.

    With ``rows``, x (tokens x width) has only the tokens at these places of all texts, one text after the other.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, rows: Tensor | None = None) -> Tensor:
        joined, places = self.query_key_value(x), x.shape[:-1]
        if rows is not None:
            assert mask is not None, "the mask has the shape of the texts"
            places = mask.shape[0], mask.shape[-1]
            joined = placed(joined, rows, places[0] * places[1])
        query, key, value = joined.view(*places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
        )
        seen = seen.transpose(1, 2).reshape(*places, -1)
        return self.dense(seen if rows is None else _Chosen.apply(seen.flatten(0, 1), rows))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(width, 4 * width)
        self.dense_4h_to_h = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Layer(nn.Module):
    """Norm, attention, residual; norm, feed-forward, residual."""

    def __init__(self, width: int, heads: int, hidden_dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention_dropout)
        self.post_attention_layernorm = nn.LayerNorm(width)
        self.mlp = FeedForward(width)
        self.dropout = nn.Dropout(hidden_dropout)

    def forward(self, x: Tensor, mask: Tensor | None, rows: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.input_layernorm(x), mask, rows))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """Everything between the embeddings and the language model's head.

    With precision bf16 the residual stream between the layers has this type, too: norms compute in fp32, but the
    embeddings' fp32 would double the bytes of all operations on the stream.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int,
        hidden_dropout: float,
        attention_dropout: float,
        *,
        checkpoint_activations: bool,
        precision: str,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(hidden_dropout)
        self.layers = nn.ModuleList(Layer(width, heads, hidden_dropout, attention_dropout) for _ in range(layers))
        self.final_layernorm = nn.LayerNorm(width)
        self.checkpoint_activations = checkpoint_activations
        self.lower = precision == "bf16"

    def forward(self, x: Tensor, mask: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        x = self.dropout(x.bfloat16() if self.lower else x)
        for layer in self.layers:
            if self.checkpoint_activations and self.training:
                x = checkpoint(layer, x, mask, rows, use_reentrant=False)
            else:
                x = layer(x, mask, rows)
        return self.final_layernorm(x)


def initialize(model: nn.Module, transformer: Transformer, std: float, embedding_std: float) -> None:
    """Draw the weights; those that add to the residual are smaller, the more layers there are."""
    modules = list(model.modules())
    for table in (module for module in modules if isinstance(module, nn.Embedding)):
        nn.init.normal_(table.weight, std=embedding_std)
    for linear in (module for module in modules if isinstance(module, nn.Linear)):
        nn.init.normal_(linear.weight, std=std)
        nn.init.zeros_(linear.bias)
    for layer in transformer.layers:
        for last in (layer.attention.dense, layer.mlp.dense_4h_to_h):
            nn.init.normal_(last.weight, std=std / math.sqrt(2 * len(transformer.layers)))


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one layer for all of them, and what is before and behind the layers."""
    compile_methods(ctx, model.transformer.layers, "forward")
    compile_methods(ctx, [model], "embedded", "score")
    return model


# -- published weights -------------------------------------------------------------------------------------


def load(model: nn.Module, path: Path, key: str, tables: Collection[str] = ()) -> None:
    """Load a checkpoint's weights, under a key or alone; of the named tables it may have fewer rows."""
    weights = _read(path, key)
    own = model.state_dict()
    problems = [*_names(own, weights), *_shapes(own, weights, tables)]
    if problems:
        raise CheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name][: tensor.shape[0]].copy_(tensor)


def _read(path: Path, key: str) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path}: file not found; init_checkpoint is a path relative to the data directory, "
            "or None to start from random weights"
        )
    try:
        # Only tensors and these types are unpickled, because a checkpoint must not run code.
        with torch.serialization.safe_globals(ALLOWED_TYPES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path}: torch cannot read this file: {error}") from error
    weights = content if _is_weights(content) else content.get(key) if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path}: no '{key}' with the weights; found {got}")
    return weights


def _is_weights(content: object) -> bool:
    return isinstance(content, dict) and bool(content) and all(isinstance(one, Tensor) for one in content.values())


def _names(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    missing = [f"missing: {name}" for name in own if name not in weights]
    return missing + [f"unknown: {name}" for name in weights if name not in own]


def _shapes(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], tables: Collection[str]) -> list[str]:
    return [
        f"{name} has shape {list(tensor.shape)}; expected {list(own[name].shape)}"
        for name, tensor in weights.items()
        if name in own and not _fits(own[name], tensor, rows_may_lack=name in tables)
    ]


def _fits(own: Tensor, tensor: Tensor, *, rows_may_lack: bool) -> bool:
    if rows_may_lack:
        return tensor.shape[1:] == own.shape[1:] and tensor.shape[0] <= own.shape[0]
    return tensor.shape == own.shape
