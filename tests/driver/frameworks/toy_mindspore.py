"""The toy in MindSpore."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import toy_data  # type: ignore[import-not-found]
from mindspore import nn, ops

from flagperf_driver.mindspore import Context, Steps, main, steps
from flagperf_driver.mindspore.main import join as join  # the scenarios use it
from flagperf_driver.mindspore.trainer import MindSporeTrainer as Trainer

FIRST_BIAS = "first.bias"
"""The name of the hidden layer's bias in this framework."""
RESUMED_DROPOUT = 0.0
"""The share of dropped values in trainings that are resumed: MindSpore cannot save the states of its generators."""


class Classifier(nn.Cell):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = nn.Dense(toy_data.INPUTS, toy_data.HIDDEN)
        self.norm = nn.BatchNorm1d(toy_data.HIDDEN, momentum=0.9) if config.norm else nn.Identity()
        self.dropout = nn.Dropout(p=config.dropout)
        self.last = nn.Dense(toy_data.HIDDEN, toy_data.CLASSES)
        for name, value in toy_data.initial().items():
            layer, _, kind = name.partition(".")
            getattr(getattr(self, layer), kind).set_data(ms.Tensor(value.T.copy()))

    def construct(self, values: Any) -> Any:
        return self.last(self.dropout(self.norm(ops.relu(self.first(values)))))


def prepare_batch(ctx: Context, batch: Any) -> Any:
    """Nest a tensor and a number that differs between the batches of a training."""
    prepared = steps.prepare_batch(ctx, batch)
    if "added" not in prepared:
        return prepared
    half, step = prepared["added"] / 2, ctx.progress.step
    return {**prepared, "added": half, "nested": [(half, float(step)), step]}


def calculate_loss(ctx: Context, model: Any, batch: Any) -> Any:
    scores = model(batch["values"]).astype(ms.float32)
    loss = ops.cross_entropy(scores, batch["labels"].astype(ms.int32))
    (added, number), step = batch["nested"]
    return loss + (batch["added"] + added).mean() + (number - step)


def evaluate_batch(ctx: Context, model: Any, batch: Any) -> Any:
    right = model(batch["values"]).argmax(1) == batch["labels"]
    return ops.stack([right.astype(ms.float32).sum(), ops.ones_like(right, dtype=ms.float32).sum()])


def weights(trainer: Trainer) -> dict[str, Any]:
    """Return the trained weights, each (inputs, outputs), and the statistics of the batch norm."""
    return {
        **{name: value.T.tolist() for name, value in trainer.states.weights().items()},
        **{f"norm.statistics.{name}": value.tolist() for name, value in trainer.states.statistics().items()},
    }


STEPS = Steps(
    create_model=lambda ctx: Classifier(ctx.config),
    prepare_batch=prepare_batch,
    calculate_loss=calculate_loss,
    evaluate_batch=evaluate_batch,
    **toy_data.STEPS,
)

if __name__ == "__main__":
    main(STEPS)
