"""What a suite gives the loop: its named steps, some with a default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable

import torch
from torch import Tensor, nn

from flagperf_driver.driver import Config
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, optimizers, schedules
from flagperf_driver.pytorch.hooks import Hooks

Batch = Any
"""Tensors, nested in tuples, lists, dicts and dataclasses as the suite likes; only the suite looks inside."""


@dataclass(frozen=True)
class Context:
    """What every step is told."""

    config: Config
    """Every resolved key as an attribute."""
    device: torch.device
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    seed: int = 42
    """The round's seed, the same on all ranks: data draw from (seed, epoch, index)."""
    scale: str = "reference"
    synthetic: bool = False
    data_dir: Path | None = None
    suite_dir: Path = field(default_factory=Path.cwd)
    metric: str = ""
    direction: str = "higher"
    target: float | None = None
    hooks: Hooks = field(default_factory=Hooks)
    """How the device is set, seeded, waited for and measured: ours, or the vendor's."""


def prepare_batch(ctx: Context, batch: Batch) -> Batch:
    """Put the batch on the device, not waiting for the copy."""
    return devices.to_device(batch, ctx.device)


def convert_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Put the model on the device, in the memory format that the config wants."""
    model = model.to(ctx.device)
    return model.to(memory_format=torch.channels_last) if ctx.config.channels_last else model


def model_to_fp16(ctx: Context, model: nn.Module) -> nn.Module:  # noqa: ARG001 - a step's signature
    """Leave the weights as they are: autocast lowers what may be lowered."""
    return model


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:  # noqa: ARG001 - a step's signature
    """Compile in place, so that parameters keep their names; called where the config says compile."""
    model.compile()
    return model


def model_to_ddp(ctx: Context, model: nn.Module) -> nn.Module:
    """Wrap the model for several ranks by ``config.parallel``; leave it alone where there is one."""
    return distributed.parallelize(model, ctx.config.parallel, ctx.device, ctx.world_size)


def create_optimizer(ctx: Context, model: nn.Module) -> torch.optim.Optimizer:
    """Give the optimizer that the config names; biases and norms (one-dimensional) are not decayed."""
    return optimizers.create(ctx.config, optimizers.parameter_groups(model, ctx.config.weight_decay))


def create_scheduler(ctx: Context, optimizer: torch.optim.Optimizer) -> schedules.Scheduler:
    """Give the learning rate of each optimizer step by ``config.lr_schedule``."""
    return schedules.create(ctx.config, optimizer)


def create_grad_scaler(ctx: Context) -> torch.amp.GradScaler | None:
    """Give fp16 a loss scaler; nothing else needs one."""
    return ctx.hooks.grad_scaler(ctx.device) if ctx.config.precision == "fp16" else None


def backward(ctx: Context, loss: Tensor, scaler: torch.amp.GradScaler | None) -> None:  # noqa: ARG001
    """Backpropagate the micro-step's loss, scaled where there is a scaler."""
    (loss if scaler is None else scaler.scale(loss)).backward()


@dataclass(frozen=True)
class Steps:
    """The named steps of a training. The first seven are the suite's; the rest have a default."""

    create_model: Callable[[Context], nn.Module]
    """On the CPU, the same weights on every rank (torch is seeded before it)."""
    create_train_data: Callable[[Context], Iterable[Batch]]
    """One pass is one epoch of this rank's share. Where it has them, ``set_epoch(int)`` is called before each pass and
    ``skip(batches)`` where a resumed training begins the next pass late."""
    create_eval_data: Callable[[Context], Iterable[Batch]]
    """This rank's share; the shares are disjoint and together exactly the set. It may be empty."""
    calculate_loss: Callable[[Context, nn.Module, Batch], Tensor]
    """The mean over the batch."""
    evaluate_batch: Callable[[Context, nn.Module, Batch], Tensor]
    """One-dimensional sums, e.g. [correct, count]; added up in float64 over batches and ranks."""
    summarize: Callable[[Context, list[float]], dict[str, float]]
    """Metrics by name from the sums over the whole set, the suite's metric among them."""
    count_samples: Callable[[Context, Batch], int]
    prepare_batch: Callable[[Context, Batch], Batch] = prepare_batch
    convert_model: Callable[[Context, nn.Module], nn.Module] = convert_model
    model_to_fp16: Callable[[Context, nn.Module], nn.Module] = model_to_fp16
    compile_model: Callable[[Context, nn.Module], nn.Module] = compile_model
    model_to_ddp: Callable[[Context, nn.Module], nn.Module] = model_to_ddp
    create_optimizer: Callable[[Context, nn.Module], torch.optim.Optimizer] = create_optimizer
    create_scheduler: Callable[[Context, torch.optim.Optimizer], schedules.Scheduler] = create_scheduler
    create_grad_scaler: Callable[[Context], torch.amp.GradScaler | None] = create_grad_scaler
    backward: Callable[[Context, Tensor, torch.amp.GradScaler | None], None] = backward
