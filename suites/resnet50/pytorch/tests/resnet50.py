"""Checks of ResNet-50's model and of the steps of image classification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import model
import torch
from checking import context, raises
from common.images import sources, steps
from common.images.folders import ImagesError
from torch import nn

from flagperf_driver.pytorch.steps import create_optimizer


def check_weight_decay_applies_to_all_parameters() -> None:
    net = model.create_model(context())
    assert [group["weight_decay"] for group in create_optimizer(context(), net).param_groups] == [0.05]
    default = create_optimizer(context(decay_vectors=False), net).param_groups
    assert [group["weight_decay"] for group in default] == [0.05, 0.0], "the control: the default excludes some"


def check_an_epoch_has_the_steps_of_its_shape() -> None:
    ctx = context("reference", synthetic=True)
    assert len(steps.create_train_data(replace(ctx, world_size=8))) == 5004
    assert len(steps.create_train_data(ctx)) == 40036


def check_evaluation_counts_every_image_once() -> None:
    class Oracle(nn.Module):
        """Correct for all digits except 3, for which the correct class is second."""

        def forward(self, labels: torch.Tensor) -> torch.Tensor:
            scores = nn.functional.one_hot(labels, 10).float()
            scores[labels == 3] = torch.tensor([0.0, 0, 0, 0.5, 1, 0, 0, 0, 0, 0])
            return scores

    totals, threes = torch.zeros(4, dtype=torch.float64), 0
    for rank in range(3):
        ctx = replace(context(eval_batch_size=50), rank=rank, world_size=3)
        for batch in steps.create_eval_data(ctx):
            threes += int((batch.labels == 3).sum())
            labels = torch.as_tensor(batch.labels)
            totals += steps.evaluate_batch(ctx, Oracle(), steps.Prepared(labels, labels))
    metrics = sources.summarize(context(), totals.tolist())
    assert totals[3] == 360
    assert abs(metrics["top1"] - (1 - threes / 360)) < 1e-12
    assert metrics["top5"] == 1.0


def check_labels_are_shuffled_for_training_only() -> None:
    def labels(shuffle: bool, data: Any) -> list[int]:
        return [int(label) for batch in data(context(shuffle_labels=shuffle)) for label in batch.labels]

    assert labels(True, steps.create_train_data) != labels(False, steps.create_train_data)
    assert labels(True, steps.create_eval_data) == labels(False, steps.create_eval_data)


def check_training_needs_a_data_dir_or_synthetic_data() -> None:
    ctx = replace(context("reference"), data_dir=None)
    raises(ImagesError, lambda: steps.create_train_data(ctx), "data_dir")
    data: Any = steps.create_train_data(replace(ctx, synthetic=True, world_size=8))
    assert next(iter(data)).pixels.shape == (32, 224, 224, 3)
