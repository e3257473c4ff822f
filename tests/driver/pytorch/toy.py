"""A toy suite that its config can change in every way; runs in the torch environment, as a rank or by ``train``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from toy_case import case  # type: ignore[import-not-found]

from flagperf_driver import driver, perflog
from flagperf_driver.heartbeat import Heartbeat
from flagperf_driver.pytorch import Context, Steps, main
from flagperf_driver.pytorch.parts import context, with_vendor_steps
from flagperf_driver.pytorch.trainer import TorchTrainer
from flagperf_driver.training.loop import Training

TRAIN, EVAL = 320, 301


class Stopped(RuntimeError):
    """Raised by the toy on request."""


class Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(config.blocks))
        self.norm = nn.BatchNorm1d(32) if config.norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.last = nn.Linear(32, 2)

    def forward(self, values: Tensor) -> Tensor:
        values = self.norm(torch.relu(self.first(values)))
        for block in self.blocks:
            values = values + torch.relu(block(values))
        return self.last(self.dropout(values))


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    values = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return values, (values[:, :4].sum(1) > 0).long()


class TrainData:
    """Data whose global batches are the same for any number of ranks."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.epoch = ctx, 0
        self.values, self.labels = samples(TRAIN, seed=0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        if self.ctx.config.no_data:
            return 0
        whole: int = TRAIN // (self.ctx.config.train_batch_size * self.ctx.world_size)
        return whole - int(self.ctx.config.short_rank == self.ctx.rank)

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.ctx.seed * 1000 + self.epoch)
        order = torch.randperm(TRAIN, generator=generator)
        size = self.ctx.config.train_batch_size * self.ctx.world_size
        for number in range(len(self)):
            mine = order[number * size : (number + 1) * size][self.ctx.rank :: self.ctx.world_size]
            yield {"values": self.values[mine], "labels": self.labels[mine]}


class SkippingData(TrainData):
    """Data that can skip batches at the start of a pass without making them."""

    first = 0

    def skip(self, batches: int) -> None:
        self.first = batches

    def __iter__(self) -> Iterator[Any]:
        first, self.first = self.first, 0
        return (batch for number, batch in enumerate(super().__iter__()) if number >= first)


def train_data(ctx: Context) -> TrainData:
    return SkippingData(ctx) if ctx.config.skips else TrainData(ctx)


def eval_data(ctx: Context) -> list[Any]:
    values, labels = samples(EVAL, seed=1)
    shares = {
        "even": slice(ctx.rank, None, ctx.world_size),
        "uneven": slice(0, 200) if ctx.rank == 0 else slice(200, None),
        "one": slice(0, None) if ctx.rank == 0 else slice(0, 0),
    }
    mine = shares[ctx.config.eval_shares if ctx.world_size > 1 else "even"]
    size = ctx.config.eval_batch_size
    parts = zip(values[mine].split(size), labels[mine].split(size), strict=False)
    return [{"values": left, "labels": right} for left, right in parts if len(right)]


class Toy:
    """The toy's steps; records their calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.modes: list[tuple[str, bool, bool]] = []
        self.dtype = ""

    def loss(self, ctx: Context, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        self.modes.append(("train", model.training, torch.is_grad_enabled()))
        if ctx.config.stop_at == [ctx.rank, self.calls]:
            raise Stopped(f"asked to stop at call {self.calls}")
        logits = model(batch["values"])
        self.dtype = str(logits.dtype)
        loss = nn.functional.cross_entropy(logits.float(), batch["labels"])
        return loss * float("nan") if ctx.config.nan_at == [ctx.rank, self.calls] else loss

    def evaluate(self, ctx: Context, model: nn.Module, batch: Any) -> Tensor:
        self.modes.append(("eval", model.training, torch.is_grad_enabled()))
        right = (model(batch["values"]).argmax(1) == batch["labels"]).sum()
        return torch.stack([right, torch.tensor(len(batch["labels"]))]).double()

    def steps(self) -> Steps:
        return Steps(
            create_model=lambda ctx: Classifier(ctx.config),
            create_train_data=train_data,
            create_eval_data=eval_data,
            calculate_loss=self.loss,
            evaluate_batch=self.evaluate,
            summarize=lambda ctx, sums: {"accuracy": sums[0] / sums[1], "count": sums[1]},
            count_samples=lambda ctx, batch: len(batch["labels"]),
            compile_model=compile_model,
        )


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    model.compile(backend=ctx.config.compile_with)
    return model


def train(**settings: Any) -> dict[str, Any]:
    """Run one training in this process; return its events, its recorded calls and its final weights."""
    toy, stream = Toy(), io.StringIO()
    world = driver.World.from_environment(os.environ)
    body = case(**settings)
    run_case = driver.RunCase.from_json(body)
    rank = driver.Rank(run_case, world, perflog.PerfLog(world.rank, stream), Heartbeat(None))
    ctx = context(rank, torch.device("cpu"), Path())
    own = toy.steps()
    error, trainer = None, None
    try:
        trainer = TorchTrainer(rank, ctx, with_vendor_steps(own, run_case.extern), own)
        Training(rank, trainer).run()
    except (ArithmeticError, RuntimeError, ValueError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    records = list(perflog.read_records(io.BytesIO(stream.getvalue().encode())))
    return {
        "events": [[record.event, dict(record.value)] for record in records],
        "error": error,
        "modes": toy.modes,
        "dtype": toy.dtype,
        "weights": _weights(trainer.parts.model) if trainer and not run_case.config.vendor_factor else None,
        "log": stream.getvalue(),
        "case": {**body, "nproc": world.world_size},
    }


def _weights(model: nn.Module) -> list[float]:
    values = [parameter.detach() for parameter in model.parameters()]
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]
    return torch.cat([value.reshape(-1) for value in whole]).tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Toy().steps())
    sys.exit("main returned")
