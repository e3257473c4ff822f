"""The toy in PyTorch. Its config adds layers to the model, which FSDP shards separately, and a compiler."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch
import toy_data  # type: ignore[import-not-found]
from torch import nn

from flagperf_driver.pytorch import Context as TorchContext
from flagperf_driver.pytorch import Steps, distributed, main
from flagperf_driver.pytorch.hooks import Hooks
from flagperf_driver.pytorch.parts import with_vendor_steps
from flagperf_driver.pytorch.trainer import TorchTrainer

FIRST_BIAS = "first.bias"
"""The name of the hidden layer's bias in this framework."""
RESUMED_DROPOUT = 0.3
"""The share of dropped values in trainings that are resumed."""
Context = functools.partial(TorchContext, device=torch.device("cpu"), hooks=Hooks())


class Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = nn.Linear(toy_data.INPUTS, toy_data.HIDDEN)
        self.blocks = nn.ModuleList(nn.Linear(toy_data.HIDDEN, toy_data.HIDDEN) for _ in range(config.blocks))
        self.norm = nn.BatchNorm1d(toy_data.HIDDEN) if config.norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.last = nn.Linear(toy_data.HIDDEN, toy_data.CLASSES)
        with torch.no_grad():
            for name, value in toy_data.initial().items():
                self.get_parameter(name).copy_(torch.from_numpy(value.T.copy()))

    def forward(self, values: Any) -> Any:
        values = self.norm(torch.relu(self.first(values)))
        for block in self.blocks:
            values = values + torch.relu(block(values))
        return self.last(self.dropout(values))


def calculate_loss(ctx: TorchContext, model: Any, batch: Any) -> Any:
    scores = model(batch["values"]).float()
    return nn.functional.cross_entropy(scores, batch["labels"]) + batch["added"].mean()


def evaluate_batch(ctx: TorchContext, model: Any, batch: Any) -> Any:
    right = (model(batch["values"]).argmax(1) == batch["labels"]).sum()
    return torch.stack([right, torch.tensor(len(batch["labels"]))]).double()


def compile_model(ctx: TorchContext, model: nn.Module) -> nn.Module:
    model.compile(backend=ctx.config.compile_with)
    return model


class Trainer(TorchTrainer):
    """A trainer with the steps of the vendor that its case names."""

    def __init__(self, rank: Any, ctx: TorchContext, steps: Steps, meeting: Any) -> None:
        super().__init__(rank, ctx, with_vendor_steps(steps, rank.case.extern), steps)


def weights(trainer: Trainer) -> dict[str, Any]:
    """Return the trained weights, each (inputs, outputs), and the statistics of the batch norm."""
    if not hasattr(trainer, "parts"):
        return {}  # the suite's own trainer has replaced this one
    model, named = trainer.parts.model, {}
    for name, value in model.named_parameters():
        whole = value.detach().full_tensor() if hasattr(value, "full_tensor") else value.detach()
        named[name.replace("module.", "").replace("_orig_mod.", "")] = (whole.T if whole.ndim == 2 else whole).tolist()
    for name, value in model.named_buffers():
        if "running" in name:
            named[f"norm.statistics.{name.rpartition('.')[2]}"] = value.tolist()
    return named


def join(rank: Any, meeting: Any) -> None:
    """Start the process group at an address of the meeting."""
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = meeting.addresses[0].rpartition(":")[2]
    distributed.process_group("gloo", torch.device("cpu"), rank.world.world_size, 60).__enter__()


def as_tensors(batches: Any) -> Any:
    """Return the data, whose batches are tensors."""
    batches.convert = torch.from_numpy
    return batches


STEPS = Steps(
    create_model=lambda ctx: Classifier(ctx.config),
    calculate_loss=calculate_loss,
    evaluate_batch=evaluate_batch,
    compile_model=compile_model,
    **{
        **toy_data.STEPS,
        "create_train_data": lambda ctx: as_tensors(toy_data.train_data(ctx)),
        "create_eval_data": lambda ctx: as_tensors(toy_data.EvalData(ctx)),
    },
)

if __name__ == "__main__":
    main(STEPS)
    sys.exit("main returned")
