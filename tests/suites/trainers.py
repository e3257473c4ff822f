"""A suite's own steps, and the trainer of its framework in this process."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from typing import Any

from flagperf_driver.driver import Rank, World
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import Context, context_fields
from flagperf_driver.training.trainer import Trainer


def steps_of(suite: Path) -> Any:
    """Return the steps that the suite's program passes to the loop."""
    framework = importlib.import_module(f"flagperf_driver.{suite.name}")
    passed: list[Any] = []
    framework.main = passed.append  # type: ignore[attr-defined]
    runpy.run_path(str(suite / "run_pretraining.py"), run_name="__main__")
    return passed[0]


def create(suite: Path, rank: Rank, steps: Any) -> Trainer:
    """Return the trainer of a single rank on the CPU."""
    if suite.name == "pytorch":
        import torch

        from flagperf_driver.pytorch.parts import context
        from flagperf_driver.pytorch.trainer import TorchTrainer

        return TorchTrainer(rank, context(rank, torch.device("cpu"), suite), steps)
    module = importlib.import_module(f"flagperf_driver.{suite.name}.trainer")
    (kind,) = (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)
    trainer: Trainer = kind(rank, Context(**context_fields(rank, suite)), steps, Meeting(World()))
    return trainer


def weights(trainer: Any) -> dict[str, Any]:
    """Return copies of all weights by name, as numpy arrays."""
    if hasattr(trainer, "parts"):
        return {name: value.detach().numpy().copy() for name, value in trainer.parts.model.named_parameters()}
    return {name: value.copy() for name, value in trainer.states.weights().items()}


def freeze(framework: str, model: Any, name: str) -> None:
    """Do not train the parameter of this name."""
    if framework == "tensorflow2":
        named = {weight.path: weight for weight in model.trainable_variables}
    else:
        named = model.parameters_dict() if framework == "mindspore" else dict(model.named_parameters())
    assert name in named, f"FROZEN = {name!r}: the model has no such parameter; it has {', '.join(named)}"
    attribute, value = {"tensorflow2": ("trainable", False), "paddle": ("stop_gradient", True)}.get(
        framework, ("requires_grad", False)
    )
    setattr(named[name], attribute, value)
