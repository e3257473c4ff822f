"""GLM: a Transformer that reads a text in both directions and then generates its missing part from left to right.

A sequence is Part A, the text with a [MASK], then Part B, the start symbol and the answer. A token of Part A attends to
all of Part A; a token of Part B attends to Part A and to the earlier tokens of Part B. Each token has two positions:
that in the text (in Part B: the position of the mask) and that in the span (0 in Part A).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from common.language import networks
from torch import Tensor, nn

from flagperf_driver.pytorch import Context

TABLES = ("transformer.position_embeddings.weight", "transformer.block_position_embeddings.weight")
"""The position tables, which may have fewer rows in the published checkpoint; its weights have the names of ours."""


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
    precision: str = "fp32"

    @classmethod
    def of(cls, config: SimpleNamespace) -> GLMConfig:
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})


class Transformer(networks.Transformer):
    """Adds the positions in the text and in the span to the embeddings."""

    def __init__(self, config: GLMConfig) -> None:
        super().__init__(
            config.hidden_size,
            config.num_layers,
            config.num_attention_heads,
            config.hidden_dropout,
            config.attention_dropout,
            checkpoint_activations=config.checkpoint_activations,
            precision=config.precision,
        )
        self.position_embeddings = nn.Embedding(config.max_seq_length + 1, config.hidden_size)
        self.block_position_embeddings = nn.Embedding(config.max_seq_length + 1, config.hidden_size)

    def places(self, positions: Tensor, spans: Tensor) -> Tensor:
        return self.position_embeddings(positions) + self.block_position_embeddings(spans)


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
        networks.initialize(self, self.transformer, config.init_std, config.embedding_init_std)

    def embedded(self, tokens: Tensor, positions: Tensor, spans: Tensor) -> Tensor:
        return self.word_embeddings(tokens) + self.transformer.places(positions, spans)

    def hidden(
        self, tokens: Tensor, positions: Tensor, spans: Tensor, text_length: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Return the states of all tokens; with ``rows``, only those at these places are computed outside attention."""
        mask, inputs = attention_mask(text_length, tokens.shape[1]), (tokens, positions, spans)
        if rows is None:
            return self.transformer(self.embedded(*inputs), mask)
        embedded = self.embedded(*(part.flatten()[rows] for part in inputs))
        return networks.placed(self.transformer(embedded, mask, rows), rows, tokens.numel()).view(*tokens.shape, -1)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        spans: Tensor,
        text_length: Tensor,
        targets: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the targets' log-probabilities; targets of -100 do not count."""
        return self.score(self.hidden(tokens, positions, spans, text_length, rows), text_length, targets)

    def score(self, hidden: Tensor, text_length: Tensor, targets: Tensor) -> Tensor:
        """Apply the head to the tokens with targets only, from the first token of Part B."""
        place = text_length[:, None] + torch.arange(targets.shape[1], device=hidden.device)
        place = place.clamp(max=hidden.shape[1] - 1)[:, :, None].expand(-1, -1, hidden.shape[2])
        logits = F.linear(hidden.gather(1, place), self.word_embeddings.weight)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        return -loss.view_as(targets).sum(1)


def create_model(ctx: Context) -> nn.Module:
    model = GLM(GLMConfig.of(ctx.config))
    if ctx.config.init_checkpoint and ctx.data_dir and not ctx.synthetic:
        networks.load(model, ctx.data_dir / ctx.config.init_checkpoint, "module", TABLES)
    return model
