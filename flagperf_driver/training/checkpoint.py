"""Checkpoints, from which an interrupted training continues; rank 0 writes them atomically for all ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flagperf_driver.driver import Rank
from flagperf_driver.training.trainer import Trainer

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


def save(rank: Rank, trainer: Trainer, progress: dict[str, Any]) -> None:
    """Write a checkpoint; every rank must call this function."""
    target = path(rank)
    assert target is not None, "path() raised no error when the training began"
    state = trainer.state()
    if rank.world.rank:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as stream:
        trainer.write(stream, {"schema": SCHEMA, "identity": _identity(rank), "progress": progress, "state": state})
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)


def load(rank: Rank, trainer: Trainer) -> dict[str, Any] | None:
    """Restore the trainer from the checkpoint and return its progress; None without a checkpoint."""
    target = path(rank)
    if target is None or not _exists_on_all_ranks(target, trainer):
        return None
    with target.open("rb") as stream:
        body = trainer.read(stream)
    _check(target, body, rank)
    trainer.restore(body["state"])
    progress: dict[str, Any] = body["progress"]
    return progress


def finish(rank: Rank) -> None:
    """Rename the checkpoint of a finished training, so that the next training starts from the beginning."""
    target = path(rank)
    if target is not None and rank.world.rank == 0 and target.exists():
        target.replace(target.with_suffix(".finished.pt"))


def _exists_on_all_ranks(target: Path, trainer: Trainer) -> bool:
    exists = trainer.gather(target.is_file())
    if all(exists):
        return True
    if any(exists):
        missing = ", ".join(str(rank) for rank, exists_here in enumerate(exists) if not exists_here)
        raise CheckpointError(f"{target} not found on rank(s) {missing}; checkpoint_dir must be shared by all hosts")
    return False


def _identity(rank: Rank) -> dict[str, Any]:
    config = rank.config
    return {
        "training": rank.case.training,
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
            f"{target} belongs to another training: {'; '.join(differences)}. Remove it or set another"
            " checkpoint_dir; to continue an interrupted training, pass its run with --resume"
        )
