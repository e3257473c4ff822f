"""Checks of ResNet-50's model and of the steps of image steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import model
import torch
from checking import context, raises
from common.images import steps
from common.images.folders import ImagesError
from torch import nn

from flagperf_driver.pytorch import optimizers


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def check_the_reference_is_resnet50() -> None:
    from torchvision.models import resnet50

    ours, theirs = model.create_model(context("reference")), resnet50()
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes
    small = model.create_model(context()).state_dict()
    assert {name: tensor.shape for name, tensor in small.items()} != shapes


def check_the_small_model_is_small() -> None:
    net = model.create_model(context())
    assert parameters(net) < 2_000_000
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def check_weight_decay_applies_to_all_parameters() -> None:
    optimizer = model.create_optimizer(context(), model.create_model(context()))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05]
    groups = optimizers.parameter_groups(model.create_model(context()), 0.05)
    assert len(groups) == 2, "the default must exclude some parameters, else this step is not needed"


def check_the_rate_falls_every_thirty_epochs_of_the_shape() -> None:
    ctx = replace(context("reference"), synthetic=True, world_size=8)
    assert steps.schedule_in_steps(ctx) == {"lr_step_steps": 30 * 5004}
    assert steps.schedule_in_steps(replace(ctx, world_size=1)) == {"lr_step_steps": 30 * 40036}
    in_steps = context("reference", lr_step_steps=7)
    assert steps.schedule_in_steps(replace(in_steps, synthetic=True)) == {}
    cosine = replace(context("reference", lr_schedule="cosine", lr_step_epochs=0), synthetic=True)
    assert steps.schedule_in_steps(cosine) == {"lr_decay_steps": 100 * 40036}


def check_the_scheduler_gives_those_rates() -> None:
    settings = {"train_batch_size": 32768, "lr_warmup_epochs": 1}  # 39 steps per epoch
    ctx = replace(context("reference", **settings), synthetic=True)
    optimizer = model.create_optimizer(ctx, nn.Linear(1, 1))
    scheduler, rates = steps.create_scheduler(ctx, optimizer), []
    for _ in range(30 * 39 + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert abs(rates[0] - 0.1 / 39) < 1e-9
    assert abs(rates[38] - 0.1) < 1e-9
    assert abs(rates[30 * 39 - 1] - 0.1) < 1e-9
    assert abs(rates[30 * 39] - 0.01) < 1e-9


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
    metrics = steps.summarize(context(), totals.tolist())
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
    assert len(data) == 5004
    assert next(iter(data)).pixels.shape == (32, 224, 224, 3)


def check_a_learning_rate_of_zero_changes_nothing() -> None:
    assert trained(learning_rate=0.0) == 0.0
    assert trained() > 0.2, "the control: with the normal rate ten steps must reduce the loss"


def trained(**settings: Any) -> float:
    """Return by how much ten steps reduce the loss of one batch."""
    ctx = context(**settings)
    torch.manual_seed(1)
    net = model.create_model(ctx)
    optimizer = model.create_optimizer(ctx, net)
    batch = steps.prepare_batch(ctx, next(iter(steps.create_train_data(ctx))))
    losses = []
    for _ in range(11):
        loss = steps.calculate_loss(ctx, net, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(losses[0] - losses[-1])
