"""How far a training is, and its last evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainingProgress:
    """How far the training is, over all its processes' lives; a checkpoint keeps it."""

    step: int = 0
    """Optimizer steps done."""
    samples: int = 0
    """Over all ranks, as of the last log point."""
    epoch: int = 0
    """Epochs completed."""
    position: int = 0
    """Batches of this epoch that are done."""
    train_time: float = 0.0
    eval_time: float = 0.0
    compute_time: float = 0.0
    input_wait_time: float = 0.0


@dataclass
class Evaluated:
    """The last evaluation."""

    step: int = -1
    metrics: dict[str, float] = field(default_factory=dict)
