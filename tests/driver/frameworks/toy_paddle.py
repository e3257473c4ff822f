"""The toy in Paddle."""

from __future__ import annotations

from typing import Any

import paddle
import toy_data  # type: ignore[import-not-found]
from paddle import nn

from flagperf_driver.paddle import Context, Steps, main
from flagperf_driver.paddle.main import join as join  # the scenarios use it
from flagperf_driver.paddle.trainer import PaddleTrainer as Trainer

FIRST_BIAS = "first.bias"
"""The name of the hidden layer's bias in this framework."""
RESUMED_DROPOUT = 0.3
"""The share of dropped values in trainings that are resumed."""


class Classifier(nn.Layer):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = nn.Linear(toy_data.INPUTS, toy_data.HIDDEN)
        self.norm = nn.BatchNorm1D(toy_data.HIDDEN) if config.norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.last = nn.Linear(toy_data.HIDDEN, toy_data.CLASSES)
        for name, value in toy_data.initial().items():
            layer, _, kind = name.partition(".")
            getattr(getattr(self, layer), kind).set_value(value)

    def forward(self, values: Any) -> Any:
        return self.last(self.dropout(self.norm(nn.functional.relu(self.first(values)))))


def calculate_loss(ctx: Context, model: Any, batch: Any) -> Any:
    scores = model(batch["values"]).astype("float32")
    return nn.functional.cross_entropy(scores, batch["labels"]) + batch["added"].mean()


def evaluate_batch(ctx: Context, model: Any, batch: Any) -> Any:
    right = (model(batch["values"]).argmax(1) == batch["labels"]).sum()
    return paddle.stack([right, paddle.to_tensor(len(batch["labels"]))])


def weights(trainer: Trainer) -> dict[str, Any]:
    """Return the trained weights, each (inputs, outputs), and the statistics of the batch norm."""
    return {
        **{name: value.tolist() for name, value in trainer.states.weights().items()},
        **{f"norm.statistics.{name}": value.tolist() for name, value in trainer.states.statistics().items()},
    }


STEPS = Steps(
    create_model=lambda ctx: Classifier(ctx.config),
    calculate_loss=calculate_loss,
    evaluate_batch=evaluate_batch,
    **toy_data.STEPS,
)

if __name__ == "__main__":
    main(STEPS)
