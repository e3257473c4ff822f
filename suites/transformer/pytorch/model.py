"""The Transformer of "Attention Is All You Need", with the norm before each part, as tensor2tensor's big model has it.

One table of embeddings serves the source, the target and the output. ``forward`` returns the loss; ``encode`` and
``step`` are for the search, which decodes one token at a time and keeps the keys and values of earlier tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from words import EOS, PAD

from flagperf_driver.pytorch import Context

Pair = tuple[Tensor, Tensor]
"""Keys and values: sequences x heads x tokens x width of a head."""


@dataclass(frozen=True)
class TransformerConfig:
    vocab_size: int
    width: int
    inner_width: int
    heads: int
    layers: int
    dropout: float
    attention_dropout: float
    inner_dropout: float
    label_smoothing: float
    max_positions: int

    @classmethod
    def of(cls, config: Any) -> TransformerConfig:
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})


class Attention(nn.Module):
    """What self-attention and cross-attention share: the output of the heads. No part has a bias, as in FlagPerf."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.output = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return as many tensors of heads."""
        batch, length, width = x.shape
        return x.view(batch, length, parts, self.heads, width // parts // self.heads).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        batch, _, length, _ = seen.shape
        attended: Tensor = self.output(seen.transpose(1, 2).reshape(batch, length, -1))
        return attended


class SelfAttention(Attention):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        return self.attend(*self.split(self.query_key_value(x), 3), mask, causal=causal)

    def step(self, x: Tensor, past: Pair | None) -> tuple[Tensor, Pair]:
        """Attend from one token to itself and the past; return also the past of the next token."""
        query, key, value = self.split(self.query_key_value(x), 3)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        return self.attend(query, key, value, causal=False), (key, value)


class CrossAttention(Attention):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key_value = nn.Linear(config.width, 2 * config.width, bias=False)

    def of_source(self, encoded: Tensor) -> Pair:
        key, value = self.split(self.key_value(encoded), 2)
        return key, value

    def forward(self, x: Tensor, source: Pair, mask: Tensor) -> Tensor:
        (query,) = self.split(self.query(x), 1)
        return self.attend(query, *source, mask, causal=False)


class FeedForward(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.inner_width)
        self.outer = nn.Linear(config.inner_width, config.width)
        self.dropout = nn.Dropout(config.inner_dropout)

    def forward(self, x: Tensor) -> Tensor:
        widened: Tensor = self.outer(self.dropout(F.relu(self.inner(x))))
        return widened


class EncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.self_attention, self.feed_forward = SelfAttention(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attention(self.norms[0](x), mask))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(3))
        self.self_attention, self.cross_attention = SelfAttention(config), CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, encoded: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attention(self.norms[0](x), causal=True))
        return self._after_self_attention(x, self.cross_attention.of_source(encoded), mask)

    def step(self, x: Tensor, past: Pair | None, source: Pair, mask: Tensor) -> tuple[Tensor, Pair]:
        """Compute one token of each hypothesis (sentences x hypotheses x width)."""
        attended, past = self.self_attention.step(self.norms[0](x).flatten(0, 1)[:, None], past)
        return self._after_self_attention(x + attended.view_as(x), source, mask), past

    def _after_self_attention(self, x: Tensor, source: Pair, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.cross_attention(self.norms[1](x), source, mask))
        return x + self.dropout(self.feed_forward(self.norms[2](x)))


class Encoded(NamedTuple):
    """What the decoder needs of source sentences."""

    sources: list[Pair]
    """Keys and values of each layer's cross-attention."""
    mask: Tensor


class Transformer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width, padding_idx=PAD)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.decoder_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("positions", sinusoids(config.max_positions, config.width), persistent=False)
        self.apply(_initialize)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the loss over the target's tokens; both end with EOS and are padded on the right."""
        start = torch.full_like(target[:, :1], EOS)
        scores = self.scores(source, torch.cat([start, target[:, :-1]], dim=1)).flatten(0, 1)
        smoothing = self.config.label_smoothing
        return F.cross_entropy(scores, target.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum")

    def scores(self, source: Tensor, previous: Tensor) -> Tensor:
        """Return the scores of all tokens after each of the previous ones, which begin with EOS."""
        encoded, mask = self._encode(source)
        x = self._embed(previous, 0, previous.shape[1])
        for layer in self.decoder:
            x = layer(x, encoded, mask)
        return self._scores(x)

    def encode(self, source: Tensor) -> Encoded:
        encoded, mask = self._encode(source)
        return Encoded([layer.cross_attention.of_source(encoded) for layer in self.decoder], mask)

    def step(self, tokens: Tensor, place: int, encoded: Encoded, past: list[Pair] | None) -> tuple[Tensor, list[Pair]]:
        """Return the scores of the token after ``tokens`` (sentences x hypotheses), which are at this place."""
        x = self._embed(tokens, place, 1)
        pasts = []
        for number, (layer, source) in enumerate(zip(self.decoder, encoded.sources, strict=True)):
            x, new = layer.step(x, past[number] if past else None, source, encoded.mask)
            pasts.append(new)
        return self._scores(x), pasts

    def _encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        mask = (source != PAD)[:, None, None]
        x = self._embed(source, 0, source.shape[1])
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def _embed(self, tokens: Tensor, first: int, length: int) -> Tensor:
        """Return the embeddings of tokens at these places."""
        embedded: Tensor = self.embedding(tokens) * math.sqrt(self.config.width)
        placed: Tensor = self.dropout(embedded + self.positions[first : first + length])  # type: ignore[index]
        return placed

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table of positions (positions x width): sines in the first half, cosines in the second."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half) * (-math.log(10000.0) / (half - 1)))
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        nn.init.zeros_(module.weight[PAD].detach())
    if isinstance(module, nn.Linear):
        joined = module.in_features if module.bias is None else module.out_features
        for part in module.weight.detach().split(joined):  # each of query, key and value by itself
            nn.init.xavier_uniform_(part)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def create_model(ctx: Context) -> nn.Module:
    """Return the Transformer with random weights."""
    return Transformer(TransformerConfig.of(ctx.config))
