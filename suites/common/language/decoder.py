"""Llama's decoder: attention with grouped heads and rotary positions, gated feed-forward layers, norms first."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from common.language import chunked_loss
from flagperf_driver.pytorch.device import AUTOCAST_TYPES

_LAST = ("attention.out.weight", "feed_forward.down.weight", "experts.down")
"""The last layer of each branch."""


@dataclass(frozen=True)
class Shape:
    """The config keys that describe a decoder."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    """Several heads of queries share a head of keys and values."""
    head_size: int
    intermediate_size: int
    tied_embeddings: bool
    """The head is the embedding."""
    norm_epsilon: float
    rope_theta: float
    rope_factor: float
    rope_low: float
    rope_high: float
    rope_old_context: int
    init_std: float
    loss_chunk: int
    precision: str

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Return the shape that a suite's config describes."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


def plain_frequencies(shape: Shape) -> Tensor:
    """Return by how much each pair of dimensions turns per position, for the context of the first training."""
    return shape.rope_theta ** -(torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size)


def frequencies(shape: Shape) -> Tensor:
    """Return by how much each pair of dimensions turns per position.

    Pairs with few turns in the context of the first training turn slower, by ``rope_factor``, so that a longer context
    has no angle that training has not seen; pairs between ``rope_low`` and ``rope_high`` turns are in between.
    """
    plain = plain_frequencies(shape)
    turns = shape.rope_old_context * plain / (2 * math.pi)
    kept = ((turns - shape.rope_low) / (shape.rope_high - shape.rope_low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / shape.rope_factor)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs of dimensions i and i + size/2, as published weights expect; x is (texts, places, heads, size)."""
    first, second = x.float().chunk(2, dim=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape, *, bias: bool = False) -> None:
        super().__init__()
        self.head_size = shape.head_size
        queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.q = nn.Linear(shape.hidden_size, queries, bias)
        self.k = nn.Linear(shape.hidden_size, keys, bias)
        self.v = nn.Linear(shape.hidden_size, keys, bias)
        self.out = nn.Linear(queries, shape.hidden_size, bias)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        # The number of heads is -1: with tensor parallelism a rank has some of them.
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_size)) for layer in (self.q, self.k, self.v))
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        return self.out(self._attend(q, k, v).transpose(1, 2).flatten(-2))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Norm, attention, residual; norm, feed-forward, residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.attention = Attention(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        return x + self.feed_forward(self.norm(x))


class Decoder(nn.Module):
    """Predicts each token from the tokens before it.

    If autocast has bf16, the residual stream has this type, too: the embedding's fp32 would double the bytes of all
    operations on the stream.
    """

    row_statistics = staticmethod(chunked_loss.row_statistics)
    row_slopes = staticmethod(chunked_loss.row_slopes)

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(map(self._block, range(shape.num_layers)))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self._angles: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        self.tie()

    def _block(self, number: int) -> nn.Module:  # noqa: ARG002 - blocks of other decoders differ
        return Block(self.shape)

    def tie(self) -> None:
        """Give head and embedding the same parameter, if the shape says so."""
        if self.shape.tied_embeddings:
            self.head.weight = self.embedding.weight

    def initial(self, name: str) -> float | None:
        """Return the standard deviation of a parameter's initial values, None for ones.

        The last layer of each branch is smaller, the more branches add to the residual stream.
        """
        if name.endswith("norm.weight"):
            return None
        return self.shape.init_std / (math.sqrt(2 * self.shape.num_layers) if name.endswith(_LAST) else 1)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss of the targets; without targets the logits."""
        x = self.norm(self._stream(tokens))
        if targets is None:
            logits: Tensor = self.head(x)
            return logits
        # In here the root's parameters are whole, with FSDP too.
        kernels = chunked_loss.Kernels(self.row_statistics, self.row_slopes)
        chunk = self.shape.loss_chunk
        return chunked_loss.mean_loss(x.flatten(0, 1), self.head.weight, targets.flatten(), chunk, kernels)

    def _stream(self, tokens: Tensor) -> Tensor:
        """Return the residual stream after the last block."""
        x = self._embedded(tokens)
        for block in self.blocks:
            x = self._after(block, x, *self._turned(tokens.shape[1], tokens.device))
        return x

    def _after(self, block: nn.Module, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the residual stream after a block."""
        after: Tensor = block(x, cosines, sines)
        return after

    def _embedded(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        return x.bfloat16() if AUTOCAST_TYPES.get(self.shape.precision) is torch.bfloat16 else x

    def _turned(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all places (places x size/2); a buffer would have no values after to_empty()."""
        if (length, device) not in self._angles:
            turned, scale = self._frequencies()
            angles = torch.outer(torch.arange(length, dtype=torch.float64), turned)
            self._angles[length, device] = (
                (scale * angles.cos()).float().to(device),
                (scale * angles.sin()).float().to(device),
            )
        return self._angles[length, device]

    def _frequencies(self) -> tuple[Tensor, float]:
        """Return by how much each pair of dimensions turns per position, and a factor of all queries and keys."""
        return frequencies(self.shape), 1.0
