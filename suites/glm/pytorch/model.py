"""GLM: a Transformer that reads a text in both directions and then generates its missing part from left to right.

A sequence is Part A, the text with a [MASK], then Part B, the start symbol and the answer. A token of Part A attends to
all of Part A; a token of Part B attends to Part A and to the earlier tokens of Part B. Each token has two positions:
that in the text (in Part B: the position of the mask) and that in the span (0 in Part A).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pretrained
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flagperf_driver.pytorch import Context


@dataclass(frozen=True)
class GLMConfig:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    max_seq_length: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02
    embedding_init_std: float = 0.02
    checkpoint_activations: bool = False

    @classmethod
    def of(cls, config: SimpleNamespace) -> GLMConfig:
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})


class Attention(nn.Module):
    def __init__(self, config: GLMConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = config.attention_dropout
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.dense(seen.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, config: GLMConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.dense_4h_to_h = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Layer(nn.Module):
    """Norm, attention, residual; norm, feed-forward, residual."""

    def __init__(self, config: GLMConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.input_layernorm(x), mask))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """Everything between the word embeddings and the language model's head."""

    def __init__(self, config: GLMConfig) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(config.max_seq_length + 1, config.hidden_size)
        self.block_position_embeddings = nn.Embedding(config.max_seq_length + 1, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size)
        self.checkpoint_activations = config.checkpoint_activations

    def forward(self, x: Tensor, positions: Tensor, spans: Tensor, mask: Tensor) -> Tensor:
        x = self.dropout(x + self.position_embeddings(positions) + self.block_position_embeddings(spans))
        for layer in self.layers:
            if self.checkpoint_activations and self.training:
                x = checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return self.final_layernorm(x)


def attention_mask(text_length: Tensor, length: int) -> Tensor:
    """Return [sequences, 1, q, k], True if query q attends to key k: k is in Part A, or not after q.

    The padding after Part B attends to all earlier tokens, but no token attends to the padding.
    """
    place = torch.arange(length, device=text_length.device)
    in_text = place < text_length[:, None]
    return (in_text[:, None, :] | (place[None, :] <= place[:, None]))[:, None]


class GLM(nn.Module):
    """Computes for each sequence the log-probability of its targets, given its text."""

    def __init__(self, config: GLMConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer = Transformer(config)
        self.apply(lambda module: _initialize(module, config))
        for layer in self.transformer.layers:
            for last in (layer.attention.dense, layer.mlp.dense_4h_to_h):
                nn.init.normal_(last.weight, std=config.init_std / math.sqrt(2 * config.num_layers))

    def hidden(self, tokens: Tensor, positions: Tensor, spans: Tensor, text_length: Tensor) -> Tensor:
        mask = attention_mask(text_length, tokens.shape[1])
        return self.transformer(self.word_embeddings(tokens), positions, spans, mask)

    def forward(self, tokens: Tensor, positions: Tensor, spans: Tensor, text_length: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the targets' log-probabilities; targets of -100 do not count.

        The head is applied to the tokens with targets only, from the first token of Part B.
        """
        hidden = self.hidden(tokens, positions, spans, text_length)
        place = text_length[:, None] + torch.arange(targets.shape[1], device=tokens.device)
        place = place.clamp(max=tokens.shape[1] - 1)[:, :, None].expand(-1, -1, hidden.shape[2])
        logits = F.linear(hidden.gather(1, place), self.word_embeddings.weight)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        return -loss.view_as(targets).sum(1)


def _initialize(module: nn.Module, config: GLMConfig) -> None:
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=config.embedding_init_std)
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=config.init_std)
        nn.init.zeros_(module.bias)


def create_model(ctx: Context) -> nn.Module:
    model = GLM(GLMConfig.of(ctx.config))
    if ctx.config.init_checkpoint and ctx.data_dir and not ctx.synthetic:
        pretrained.load(model, ctx.data_dir / ctx.config.init_checkpoint)
    return model
