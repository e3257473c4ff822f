"""A GRU that reads a picture row by row and names its digit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from data import Digits

    from flagperf_driver.pytorch import Context


class RowReader(nn.Module):
    """A recurrent network whose state after the last row gives the scores of the ten digits."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.rows = nn.GRU(size, width, batch_first=True)
        self.scores = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        states, _ = self.rows(pixels)
        scores: Tensor = self.scores(states[:, -1])
        return scores


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    return RowReader(ctx.config.image_size, ctx.config.width)


def calculate_loss(ctx: Context, model: nn.Module, batch: Digits) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the mean cross entropy."""
    return functional.cross_entropy(model(batch.pixels), batch.labels)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Digits) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the number of correct predictions and of digits."""
    correct = (model(batch.pixels).argmax(dim=1) == batch.labels).sum()
    return torch.stack([correct, torch.full_like(correct, len(batch.labels))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the share of correct predictions."""
    correct, count = sums
    return {"top1": correct / count}
