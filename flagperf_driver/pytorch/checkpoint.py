"""Checkpoints, from which an interrupted training continues; rank 0 writes them atomically for all ranks."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.parts import Parts

SCHEMA = 1


class CheckpointError(RuntimeError):
    """An error for a training that cannot write its checkpoint or continue from it."""


def path(rank: Rank) -> Path | None:
    """Return the path of this round's checkpoint; None if the config requests no checkpoints."""
    folder, steps = rank.config.checkpoint_dir, rank.config.checkpoint_steps
    if folder is None and not steps:
        return None
    if folder is None or not Path(folder).is_absolute():
        raise CheckpointError(
            f"checkpoint_dir is {folder!r} and checkpoint_steps is {steps!r}; "
            "set checkpoint_dir to an absolute path, so that a later run finds the checkpoint"
        )
    return Path(folder) / f"{rank.case.case.replace(':', '_')}_round{rank.case.round}.pt"


def save(rank: Rank, parts: Parts, device: torch.device, progress: dict[str, Any]) -> None:
    """Write a checkpoint; every rank must call this function."""
    target = path(rank)
    assert target is not None, "path() raised no error when the training began"
    # Only rank 0's statistics are saved. Averaging them now does not change the next evaluation, which averages too.
    distributed.average_statistics(distributed.unwrap(parts.model))
    weights = _weights(parts, sharded=rank.config.parallel == "fsdp" and rank.world.world_size > 1)
    random_states = distributed.gather(_random_state(device))
    if rank.world.rank:
        return
    body = {
        "schema": SCHEMA,
        "identity": _identity(rank),
        **weights,
        "scheduler": dict(parts.scheduler.state_dict()),
        "scaler": parts.scaler.state_dict() if parts.scaler else None,
        "random": random_states,
        "progress": progress,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as stream:
        torch.save(body, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)


def load(rank: Rank, parts: Parts) -> dict[str, Any] | None:
    """Restore the parts from the checkpoint and return its progress; None without a checkpoint.

    The progress includes the random states; the caller passes them to ``restore_random`` after it has skipped the
    batches of the earlier training.
    """
    target = path(rank)
    if target is None or not _exists_on_all_ranks(target):
        return None
    body = torch.load(target, map_location="cpu", weights_only=True)
    _check(target, body, rank)
    _restore(parts, body, sharded=rank.config.parallel == "fsdp" and rank.world.world_size > 1)
    parts.scheduler.load_state_dict(body["scheduler"])
    if parts.scaler:
        parts.scaler.load_state_dict(body["scaler"])
    return {**body["progress"], "random": body["random"][rank.world.rank]}


def finish(rank: Rank) -> None:
    """Rename the checkpoint of a finished training, so that the next training starts from the beginning."""
    target = path(rank)
    if target is not None and rank.world.rank == 0 and target.exists():
        target.replace(target.with_suffix(".finished.pt"))


def _exists_on_all_ranks(target: Path) -> bool:
    exists = distributed.gather(target.is_file())
    if all(exists):
        return True
    if any(exists):
        missing = ", ".join(str(rank) for rank, exists_here in enumerate(exists) if not exists_here)
        raise CheckpointError(f"{target} not found on rank(s) {missing}; checkpoint_dir must be shared by all hosts")
    return False


def _identity(rank: Rank) -> dict[str, Any]:
    config = rank.config
    return {
        "case": rank.case.case,
        "scale": rank.case.scale,
        "seed": rank.case.seed,
        "world_size": rank.world.world_size,
        "train_batch_size": config.train_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "optimizer": config.optimizer,
    }


def _check(target: Path, body: dict[str, Any], rank: Rank) -> None:
    if body.get("schema") != SCHEMA:
        raise CheckpointError(f"{target}: schema is {body.get('schema')!r}; expected {SCHEMA}")
    expected, stored = _identity(rank), body["identity"]
    differences = [
        f"{key} is {stored.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if stored.get(key) != value
    ]
    if differences:
        raise CheckpointError(
            f"{target} belongs to another training: {'; '.join(differences)}. Remove it or set another checkpoint_dir"
        )


def _weights(parts: Parts, sharded: bool) -> dict[str, Any]:
    if not sharded:
        model = distributed.unwrap(parts.model)
        return {"model": model.state_dict(), "optimizer": parts.optimizer.state_dict()}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model_state, optimizer_state = get_state_dict(parts.model, parts.optimizer, options=options)
    return {"model": model_state, "optimizer": optimizer_state}


def _restore(parts: Parts, body: dict[str, Any], sharded: bool) -> None:
    if not sharded:
        distributed.unwrap(parts.model).load_state_dict(body["model"])
        parts.optimizer.load_state_dict(body["optimizer"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        parts.model,
        parts.optimizer,
        model_state_dict=body["model"],
        optim_state_dict=body["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )


def _random_state(device: torch.device) -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    device_state = devices.random_state(device)
    if device_state is not None:
        state["device"] = device_state
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    return state


def restore_random(state: dict[str, Any], device: torch.device) -> None:
    """Restore the random state that ``save`` stored for this rank."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "device" in state:
        devices.backend(device).set_rng_state(state["device"])
    if "numpy" in state and "numpy" in sys.modules:
        values: list[Any] = state["numpy"]
        sys.modules["numpy"].random.set_state(tuple(values))
