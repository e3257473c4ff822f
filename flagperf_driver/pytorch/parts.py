"""A training's parts, made in the one right order from the steps that make them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterable

import torch
from torch import nn

from flagperf_driver import extern
from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch.schedules import Scheduler
from flagperf_driver.pytorch.steps import Context, Steps


@dataclass(frozen=True)
class Parts:
    """What the loop drives."""

    model: nn.Module
    """As wrapped for several ranks."""
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler
    scaler: torch.amp.GradScaler | None
    train_data: Iterable[Any]
    eval_data: Iterable[Any]


def context(rank: Rank, device: torch.device, suite_dir: Path) -> Context:
    """What the steps are told."""
    case, world = rank.case, rank.world
    return Context(
        config=case.config,
        device=device,
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        seed=case.seed,
        scale=case.scale,
        synthetic=case.synthetic,
        data_dir=case.data_dir,
        suite_dir=suite_dir,
        metric=case.metric.name,
        direction=case.metric.direction,
        target=case.metric.target,
    )


def with_vendor(steps: Steps, folder: Path | None) -> tuple[Steps, tuple[str, ...]]:
    """The steps, those replaced that the vendor brings, and their names."""
    theirs = extern.load(folder, list(Steps.__dataclass_fields__))
    return replace(steps, **theirs), tuple(sorted(theirs))


def settings(config: Any, device: torch.device) -> None:
    """What is set for the whole process."""
    devices.set_precision(config.precision, device)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.cudnn_deterministic


def build(ctx: Context, steps: Steps) -> Parts:
    """Make everything; the weights are the same on all ranks, what is drawn later is not."""
    settings(ctx.config, ctx.device)
    devices.seed_model(ctx.seed)
    model = steps.create_model(ctx)
    model = steps.model_to_fp16(ctx, steps.convert_model(ctx, model))
    if ctx.config.compile:
        model = steps.compile_model(ctx, model)
    model = steps.model_to_ddp(ctx, model)
    model.train()
    devices.seed_rank(ctx.seed, ctx.rank)
    optimizer = steps.create_optimizer(ctx, model)
    return Parts(
        model=model,
        optimizer=optimizer,
        scheduler=steps.create_scheduler(ctx, optimizer),
        scaler=steps.create_grad_scaler(ctx),
        train_data=steps.create_train_data(ctx),
        eval_data=steps.create_eval_data(ctx),
    )


def description(ctx: Context, parts: Parts) -> dict[str, Any]:
    """What INIT_END says of them."""
    libraries: dict[str, str] = {"torch": torch.__version__}
    if torch.version.cuda and ctx.device.type == "cuda":
        libraries["cuda"] = torch.version.cuda
        libraries["cudnn"] = str(torch.backends.cudnn.version())
    return {
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "device": devices.name(ctx.device),
        "framework_version": torch.__version__,
        "libraries": libraries,
        "precision": ctx.config.precision,
        "world_size": ctx.world_size,
        "compile": ctx.config.compile,
        "optimizer": type(parts.optimizer).__name__,
        "parallel": ctx.config.parallel if ctx.world_size > 1 else None,
    }
