"""The step in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.pytorch.parts import context
from flagperf_driver.pytorch.trainer import TorchTrainer


def make_model(width: int, layers: int) -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def bare_step(model: nn.Module) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return the hand-written step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    model.train()

    def step(values: np.ndarray, labels: np.ndarray) -> None:
        loss = nn.functional.cross_entropy(model(torch.from_numpy(values)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def trainer(rank: Rank, model: nn.Module, steps: dict[str, Any]) -> TorchTrainer:
    """Return the trainer of the same step."""

    def loss(_ctx: Context, module: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    made = Steps(
        create_model=lambda _: model, calculate_loss=loss, evaluate_batch=lambda *_: torch.zeros(1),
        prepare_batch=lambda _, batch: tuple(torch.from_numpy(item) for item in batch), **steps,
    )  # fmt: skip
    return TorchTrainer(rank, context(rank, torch.device("cpu"), Path()), made)
