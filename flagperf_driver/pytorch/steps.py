"""The steps that a suite passes to the loop, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, List, Mapping, Sequence

import torch
from torch import Tensor, nn

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import optimizers, schedules, sharding
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.training import steps
from flagperf_driver.training.steps import Batch

Total = Callable[[Sequence[float]], List[float]]
"""Adds values over all ranks."""


def prepare_batch(ctx: PyTorchContext, batch: Batch) -> Batch:
    """Copy the batch to the device asynchronously."""
    return devices.to_device(batch, ctx.device)


def convert_model(ctx: PyTorchContext, model: nn.Module) -> nn.Module:
    """Move the model to the device, in the memory format that the config sets.

    A model on the meta device stays there: it gets memory in the last step, divided among the ranks.
    """
    if sharding.is_on_meta(model):
        return model
    model = model.to(ctx.device)
    return model.to(memory_format=torch.channels_last) if ctx.config.channels_last else model


def model_to_fp16(ctx: PyTorchContext, model: nn.Module) -> nn.Module:  # noqa: ARG001 - a step's signature
    """Keep the weights' precision: autocast lowers the precision of operations."""
    return model


def compile_model(ctx: PyTorchContext, model: nn.Module) -> nn.Module:
    """Compile the model in place, which keeps the parameters' names; called if ``config.compile`` is set."""
    model.compile(mode=ctx.config.compile_mode)
    return model


def compile_methods(ctx: PyTorchContext, modules: Iterable[nn.Module], *names: str) -> None:
    """Compile these methods of each module in place; the layers of a model are compiled once for all of them.

    A compile_model step that uses this function compiles much faster than the whole model, and only operations of
    different parts are not fused.
    """
    for module in modules:
        for name in names:
            setattr(module, name, torch.compile(getattr(module, name), mode=ctx.config.compile_mode))


def model_to_ddp(ctx: PyTorchContext, model: nn.Module) -> nn.Module:
    """Wrap the model for several ranks by ``config.parallel``; return it unchanged for a single rank."""
    return sharding.parallelize(ctx, model)


def create_optimizer(ctx: PyTorchContext, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the config names, with the weight decay that the config describes."""
    return optimizers.create(ctx.config, optimizers.parameter_groups(model, ctx.config))


def create_scheduler(ctx: PyTorchContext, optimizer: torch.optim.Optimizer) -> schedules.Scheduler:
    """Return the learning-rate schedule ``config.lr_schedule``."""
    return schedules.create(ctx.config, optimizer, ctx.progress.steps_per_epoch)


def create_grad_scaler(ctx: PyTorchContext) -> torch.amp.GradScaler | None:
    """Return a loss scaler for fp16, else None."""
    return ctx.hooks.grad_scaler(ctx.device) if ctx.config.precision == "fp16" else None


def backward(ctx: PyTorchContext, loss: Tensor, scaler: torch.amp.GradScaler | None) -> None:  # noqa: ARG001
    """Backpropagate the micro-step's loss, scaled if a scaler is given."""
    (loss if scaler is None else scaler.scale(loss)).backward()


@dataclass(frozen=True)
class PyTorchSteps(steps.Steps):
    """The named steps of a training: those of every framework, and further ones, which have defaults."""

    prepare_batch: Callable[[PyTorchContext, Batch], Batch] = prepare_batch
    convert_model: Callable[[PyTorchContext, nn.Module], nn.Module] = convert_model
    model_to_fp16: Callable[[PyTorchContext, nn.Module], nn.Module] = model_to_fp16
    compile_model: Callable[[PyTorchContext, nn.Module], nn.Module] = compile_model
    model_to_ddp: Callable[[PyTorchContext, nn.Module], nn.Module] = model_to_ddp
    create_optimizer: Callable[[PyTorchContext, nn.Module], torch.optim.Optimizer] = create_optimizer
    create_scheduler: Callable[[PyTorchContext, torch.optim.Optimizer], schedules.Scheduler] = create_scheduler
    create_grad_scaler: Callable[[PyTorchContext], torch.amp.GradScaler | None] = create_grad_scaler
    backward: Callable[[PyTorchContext, Tensor, torch.amp.GradScaler | None], None] = backward
    step_figures: Callable[[PyTorchContext, nn.Module, Total], Mapping[str, float]] | None = None
    """Return figures of the table ``flagperf_driver/logged_step.py``, such as the load of experts, of all ranks since
    the last call; none if there was no step."""
