"""The state of a training in PyTorch: weights, optimizer, schedule, and the random generators."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Sequence

import torch
from torch import distributed as dist

from flagperf_driver import seeds
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.parts import Parts, seed
from flagperf_driver.pytorch.schedules import Schedule
from flagperf_driver.training.checkpoint import CheckpointError

Tensors = Dict[str, torch.Tensor]
_REST = "rest.pt"
_MODEL = "model/"
_PLACE = "tensor"
"""The key of a tensor's name, in the place of the tensor."""


class TorchStates:
    """Copies the state of a training into host memory, writes it, and reads it again at any number of ranks."""

    def __init__(self, ctx: PyTorchContext, parts: Parts) -> None:
        self._ctx, self._parts = ctx, parts
        self._copies: Tensors = {}
        """Host memory for this rank's share, pinned if possible; the next checkpoint uses it again."""
        self._checkpoint_group: Any = None
        self._random: Sequence[Mapping[str, Any]] | None = None

    def copy(self) -> Callable[[Path], None]:
        """Copy this rank's share, and return a function that writes it; every rank calls both."""
        ctx = self._ctx
        # Averaging statistics now does not change the next evaluation, which averages too.
        distributed.average_statistics(distributed.unwrap(self._parts.model))
        tensors: Tensors = {}
        rest = {"state": _without_tensors(self._state(), "", tensors, {})}
        for number, (name, tensor) in enumerate(tensors.items()):
            # What all ranks have is shared out.
            if is_sharded(tensor) or number % ctx.world_size == ctx.rank:
                self._copy(name, tensor)
        # A training that has read a state continues with its random numbers.
        rest["random"] = self._random or distributed.gather(random_state(ctx.device))
        group = self._group()
        ctx.hooks.synchronize(ctx.device)

        def write(folder: Path) -> None:
            from flagperf_driver.pytorch import storage

            if ctx.rank == 0:
                with (folder / _REST).open("wb") as stream:
                    torch.save(rest, stream)
                    os.fsync(stream.fileno())
            storage.write(folder, self._copies, group)
            if ctx.rank == 0:
                storage.check(folder)

        return write

    def load(self, folder: Path, steps: int | None = None) -> None:
        """Read the state, and keep the random states of the ranks that wrote it for ``continue_random``.

        ``steps``: a vendor's steps may have written it after so many, so the hyper-parameters are the suite's own.
        """
        from flagperf_driver.pytorch import storage

        rest = torch.load(folder / _REST, map_location="cpu", weights_only=True)
        into = self._destinations(storage.stored(folder))
        storage.read(folder, into, self._group())
        state = _with_tensors(rest["state"], into)
        distributed.unwrap(self._parts.model).load_state_dict(state["model"])
        if steps is None:
            self._parts.optimizer.load_state_dict(state["optimizer"])
        else:
            self._parts.optimizer.load_state_dict(_with_settings(state["optimizer"], self._parts.optimizer, steps))
        own_schedule = steps is not None and isinstance(self._parts.scheduler, Schedule)
        self._parts.scheduler.load_state_dict({"done": steps} if own_schedule else state["scheduler"])
        if self._parts.scaler and state["scaler"]:
            self._parts.scaler.load_state_dict(state["scaler"])
        self._random = rest["random"]

    def continue_random(self) -> None:
        """Set this rank's random generators to a state that was read; derive another one if the ranks are others."""
        ctx, of_ranks, self._random = self._ctx, self._random, None
        if of_ranks is not None and len(of_ranks) == ctx.world_size:
            restore_random(of_ranks[ctx.rank], ctx.device)
        elif of_ranks is not None:
            seed(ctx, f"{seeds.RANK} after step {ctx.progress.step}", ctx.data_rank)

    def weights(self) -> Tensors:
        """Return the trained weights by the names of their stored values, shared ones once."""
        stored: Tensors = {}
        _without_tensors({"model": self._state()["model"]}, "", stored, {})
        return {name: weight for name, weight in stored.items() if weight.requires_grad}

    def stored_weights(self, folder: Path) -> Tensors:
        """Read the trained weights of a state, in this training's layout; every rank calls it."""
        from flagperf_driver.pytorch import storage

        into = {name: torch.empty_like(weight.detach()) for name, weight in self.weights().items()}
        storage.read(folder, into, self._group())
        return into

    def _state(self) -> dict[str, Any]:
        parts = self._parts
        return {
            # The parameters themselves, so that shared ones are stored once and are read in place.
            "model": dict(distributed.unwrap(parts.model).state_dict(keep_vars=True)),
            "optimizer": parts.optimizer.state_dict(),
            "scheduler": dict(parts.scheduler.state_dict()),
            "scaler": parts.scaler.state_dict() if parts.scaler else None,
        }

    def _destinations(self, stored: Mapping[str, Any]) -> Tensors:
        """Return a tensor for each stored one: the model's own, and for a parameter's moments one in its layout."""
        own: Tensors = {}
        _without_tensors(self._state(), "", own, {})
        parameters, optimizer = {}, self._parts.optimizer
        for group, numbered in zip(optimizer.param_groups, optimizer.state_dict()["param_groups"]):
            for number, parameter in zip(numbered["params"], group["params"]):
                parameters[f"optimizer/state/{number}"] = parameter
        found = {}
        for name, entry in stored.items():
            size, dtype = entry.size, entry.properties.dtype
            like = parameters.get(name.rpartition("/")[0])
            if name in own:
                found[name] = own[name]
            elif like is not None and like.shape == size:
                # Also in its memory format: a fused optimizer reads both as they lie in memory.
                found[name] = torch.empty_like(like.detach(), dtype=dtype)
            else:
                found[name] = torch.empty(size, dtype=dtype)
        return found

    def _copy(self, name: str, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        copied = self._copies.get(name)
        if copied is None or copied.shape != tensor.shape or copied.dtype != tensor.dtype:
            copied = torch.empty_like(tensor, device="cpu", pin_memory=devices.pins(self._ctx.device))
            self._copies[name] = copied
        local(copied).copy_(local(tensor), non_blocking=True)

    def _group(self) -> Any:
        """Return a process group for the checkpoints alone: they are written while the ranks train."""
        if self._checkpoint_group is None and self._ctx.world_size > 1:
            self._checkpoint_group = dist.new_group(backend="gloo")
        return self._checkpoint_group


def model_weights(folder: Path) -> Tensors:
    """Return the weights of a checkpoint by the model's names, whole, however many ranks wrote them."""
    from flagperf_driver.pytorch import storage

    stored = {name: one for name, one in storage.stored(folder).items() if name.startswith(_MODEL)}
    into = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in stored.items()}
    storage.read(folder, into, None)
    return {name[len(_MODEL) :]: tensor for name, tensor in into.items()}


def _with_settings(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
    """Return the values that another optimizer keeps for each parameter, with this one's hyper-parameters.

    Some optimizers count their steps for each parameter, and some for all of a group.
    """
    own: dict[str, Any] = optimizer.state_dict()
    for group in own["param_groups"]:
        group["steps"] = steps
    counted = {"step": torch.tensor(float(steps))}
    own["state"] = {number: {**counted, **values} for number, values in saved["state"].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved["state"].items():
        for name, value in values.items():
            # A fused optimizer would read beyond a smaller one.
            if number >= len(parameters) or (getattr(value, "ndim", 0) and value.shape != parameters[number].shape):
                raise CheckpointError(f"{name} of the optimizer's parameter {number} is of another model or optimizer")
    return own


def is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> torch.Tensor:
    part: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def _without_tensors(value: Any, name: str, tensors: Tensors, names: dict[int, str]) -> Any:
    """Return the value with the name of each tensor in its place, and put the tensors into ``tensors``."""
    if isinstance(value, torch.Tensor):
        name = names.setdefault(id(value), name)
        tensors[name] = value
        return {_PLACE: name}
    if isinstance(value, dict):
        prefix = f"{name}/" if name else ""
        return {key: _without_tensors(item, f"{prefix}{key}", tensors, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(item, f"{name}/{at}", tensors, names) for at, item in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if list(value) == [_PLACE]:
            return tensors[value[_PLACE]]
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of this rank's random generators, on the host and on the device."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    device_state = devices.random_state(device)
    if device_state is not None:
        state["device"] = device_state
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    return state


def restore_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Set this rank's random generators to what ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "device" in state:
        devices.backend(device).set_rng_state(state["device"])
    if "numpy" in state and "numpy" in sys.modules:
        values: list[Any] = state["numpy"]
        sys.modules["numpy"].random.set_state(tuple(values))
