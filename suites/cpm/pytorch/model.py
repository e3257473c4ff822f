"""CPM: GPT-2's Transformer, which predicts each token of a Chinese text from the tokens before it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from common.language import networks
from lines import IGNORED, Text
from torch import Tensor, nn

from flagperf_driver.pytorch import Context


class CPM(nn.Module):
    """The names of its weights are those of the published checkpoint."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.positions, width)
        self.transformer = networks.Transformer(
            width,
            config.num_layers,
            config.num_attention_heads,
            config.hidden_dropout,
            config.attention_dropout,
            checkpoint_activations=config.checkpoint_activations,
            precision=config.precision,
        )
        networks.initialize(self, self.transformer, config.init_std, config.embedding_init_std)

    def forward(self, tokens: Tensor, targets: Tensor, *, judge: bool = False) -> Tensor:
        """Return the mean loss of the targets; with ``judge``, the sums that ``summarize`` expects."""
        return self.score(self.transformer(self.embedded(tokens)), targets, judge=judge)

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.word_embeddings(tokens) + self.position_embeddings.weight[: tokens.shape[1]]

    def score(self, hidden: Tensor, targets: Tensor, *, judge: bool) -> Tensor:
        """Apply the head to all tokens."""
        logits = F.linear(hidden, self.word_embeddings.weight)
        if judge:
            return self._judge(logits, targets)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def _judge(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compare the most probable tokens with the targets, on the device: the table of embeddings is large."""
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        counted = targets != IGNORED
        predicted = logits.argmax(-1)
        cosines = F.cosine_similarity(self._sum(predicted, counted), self._sum(targets.clamp(min=0), counted))
        exact = ((predicted == targets) | ~counted).all(1)
        sums = cosines.clamp(-1, 1).sum(), exact.sum(), loss, counted.sum(), torch.ones_like(cosines).sum()
        return torch.stack([one.float() for one in sums])

    def _sum(self, tokens: Tensor, counted: Tensor) -> Tensor:
        """Return the sum of the embeddings of each text's counted tokens."""
        return (F.embedding(tokens, self.word_embeddings.weight).float() * counted[:, :, None]).sum(1)


def create_model(ctx: Context) -> nn.Module:
    """Return the model with the published weights, or with random weights."""
    model = CPM(ctx.config)
    if ctx.config.init_checkpoint and ctx.data_dir and not ctx.synthetic:
        networks.load(model, ctx.data_dir / ctx.config.init_checkpoint, "model")
    return model


def calculate_loss(ctx: Context, model: nn.Module, batch: Text) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the mean cross-entropy of the batch's targets."""
    return model(batch.tokens, batch.targets)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Text) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the sums of cosines, exact answers, losses, targets and texts."""
    return model(batch.tokens, batch.targets, judge=True)


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the means over all texts, and the loss of a token."""
    cosines, exact, loss, targets, texts = sums
    return {
        "embedding_average": cosines / texts,
        "exact_answers": exact / texts,
        "token_loss": loss / targets,
        "texts": texts,
    }
