"""Wav2Vec2's loss, and its metrics: how often it finds the right frame, and how many of its codes it uses."""

from __future__ import annotations

import math

import torch
from data import Masked
from torch import Tensor, nn
from torch.nn import functional

from flagperf_driver.pytorch import Context


def calculate_loss(ctx: Context, model: nn.Module, batch: Masked) -> Tensor:
    """Return the cross entropy of the right frames, plus what keeps all codes in use and the features small."""
    config = ctx.config
    answers = model(batch.audio, batch.masked, batch.others, _gumbel(ctx))
    found = _cross_entropy(answers.logits)
    unused = 1 - _perplexity(answers.chances) / answers.chances.numel()
    return found + config.diversity_weight * unused + config.penalty_weight * answers.penalty


def evaluate_batch(ctx: Context, model: nn.Module, batch: Masked) -> Tensor:
    """Return the sums: right answers, masked frames, cross entropy, and how many frames chose each code."""
    answers = model(batch.audio, batch.masked, batch.others, _gumbel(ctx))
    logits = answers.logits.float()
    # As in FlagPerf: if all others have the right code too, the answer is right without a choice.
    right = (logits.argmax(2) == 0) & (logits.argmin(2) != 0)
    count = right.numel()
    sums = torch.stack([right.sum(), _cross_entropy(logits) * count, torch.full_like(logits[0, 0, 0], count)])
    return torch.cat([sums, answers.chosen.flatten()])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:
    """Return the share of right answers, the mean cross entropy, and the share of the codes that are in use."""
    right, cross_entropy, count, *chosen = sums
    books = torch.tensor(chosen, dtype=torch.float64).view(ctx.config.codebooks, -1)
    return {
        "acc": right / count,
        "val_loss": cross_entropy / count,
        "code_use": float(_perplexity(books / count)) / books.numel(),
    }


def _cross_entropy(logits: Tensor) -> Tensor:
    right = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return functional.cross_entropy(logits.float().flatten(0, 1), right.flatten())


def _perplexity(chances: Tensor) -> Tensor:
    """Return how many codes are in use, over all codebooks: the exponential of each codebook's entropy."""
    return (-torch.special.xlogy(chances, chances).sum(1)).exp().sum()


def _gumbel(ctx: Context) -> Tensor:
    """Return the temperature of the choice of codes; a tensor, because a number would be a new graph in each step."""
    config = ctx.config
    value = max(config.gumbel_first * math.pow(config.gumbel_decay, ctx.progress.step), config.gumbel_last)
    return torch.full((), value, device=ctx.device)
