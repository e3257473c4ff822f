"""Build the parts of a training by calling its steps in the right order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import nn

from flagperf_driver import extern, seeds
from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, vendor_step_checks
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.hooks import Hooks
from flagperf_driver.pytorch.schedules import Scheduler
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.training.batches import any_ranks, steps_per_epoch
from flagperf_driver.training.steps import context_fields


@dataclass(frozen=True)
class Parts:
    """The parts of a training that the loop uses."""

    model: nn.Module
    """Wrapped for several ranks."""
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler
    scaler: torch.amp.GradScaler | None
    train_data: Iterable[Any]
    eval_data: Iterable[Any]
    replaced: tuple[str, ...] = ()
    """The steps that a vendor replaced."""
    deviations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other differences from the suite: by name, the vendor's value and the suite's value."""


def context(rank: Rank, device: torch.device, suite_dir: Path, hooks: Hooks | None = None) -> PyTorchContext:
    """Return the context that is passed to every step."""
    return PyTorchContext(**context_fields(rank, suite_dir), device=device, hooks=hooks or Hooks())


def with_vendor_steps(own: PyTorchSteps, folder: Path | None) -> PyTorchSteps:
    """Return the suite's own steps, with the steps that the vendor's extern folder replaces."""
    theirs = extern.load_steps(folder)
    return replace(own, **{name: vendor_step_checks.with_return_check(name, step) for name, step in theirs.items()})


def seed(ctx: PyTorchContext, purpose: str, rank: int = 0) -> None:
    """Seed the random numbers of the host and of the device."""
    value = seeds.derive(ctx.seed, purpose, rank)
    devices.seed_host(value)
    ctx.hooks.seed(ctx.device, value)


def build(ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps) -> Parts:
    """Build all parts. The initial weights are the same on all ranks; later ones differ between data ranks."""
    ctx.hooks.settings(ctx.device, ctx.config)
    seed(ctx, seeds.MODEL)
    model = vendor_step_checks.create_model(ctx, steps, own)
    model = steps.model_to_fp16(ctx, steps.convert_model(ctx, model))
    if ctx.config.compile:
        model = steps.compile_model(ctx, model)
    model = steps.model_to_ddp(ctx, model)
    model.train()
    seed(ctx, seeds.RANK, ctx.data_rank)
    optimizer = steps.create_optimizer(ctx, model)
    deviations = vendor_step_checks.deviations(ctx, steps, own, model, optimizer)
    train_data = steps.create_train_data(ctx)
    ctx.progress.steps_per_epoch = steps_per_epoch(
        train_data,
        ctx.config.gradient_accumulation_steps,
        lambda batches: int(distributed.minimum([batches], ctx.device)[0]),
    )
    return Parts(
        model=model,
        optimizer=optimizer,
        scheduler=steps.create_scheduler(ctx, optimizer),
        scaler=steps.create_grad_scaler(ctx),
        train_data=train_data,
        eval_data=steps.create_eval_data(ctx),
        replaced=vendor_step_checks.replaced(steps, own),
        deviations=deviations,
    )


def description(ctx: PyTorchContext, parts: Parts) -> dict[str, Any]:
    """Return the description of the training for INIT_END."""
    return {
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "device": devices.name(ctx.device),
        "framework_version": torch.__version__,
        "libraries": devices.libraries(ctx.device),
        "precision": ctx.config.precision,
        "world_size": ctx.world_size,
        "compile": ctx.config.compile,
        "optimizer": type(parts.optimizer).__name__,
        "parallel": ctx.parallel.name if ctx.world_size > 1 else None,
        "any_ranks": any_ranks(parts.train_data),
        "replaced": parts.replaced,
        "deviations": parts.deviations,
    }
