"""The step in Paddle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from flagperf_driver.driver import Rank
from flagperf_driver.paddle import Context, Steps
from flagperf_driver.paddle.main import join
from flagperf_driver.paddle.trainer import PaddleTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import context_fields


def make_model(width: int, layers: int) -> nn.Layer:
    paddle.seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def bare_step(model: nn.Layer) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return the hand-written step."""
    optimizer = paddle.optimizer.AdamW(learning_rate=1e-3, parameters=model.parameters(), weight_decay=0.0)
    model.train()

    def step(values: np.ndarray, labels: np.ndarray) -> None:
        loss = nn.functional.cross_entropy(model(paddle.to_tensor(values)), paddle.to_tensor(labels))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def trainer(rank: Rank, model: nn.Layer, steps: dict[str, Any]) -> Any:
    """Return the trainer of the same step."""

    def loss(_ctx: Context, module: nn.Layer, batch: Any) -> Any:
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    made = Steps(
        create_model=lambda _: model, calculate_loss=loss, evaluate_batch=lambda *_: paddle.zeros([1]), **steps
    )
    meeting = Meeting(rank.world)
    join(rank, meeting)
    return PaddleTrainer(rank, Context(**context_fields(rank, Path())), made, meeting)
