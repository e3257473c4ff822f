"""The progress of a training and its last evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Mapping

OF_ONE_RANK = ("tokens", "full_tokens", "computed_tokens")
"""Fields of the progress that each rank counts for itself; a checkpoint has their sums."""


@dataclass
class TrainingProgress:
    """The progress of a training, including the time before it was resumed; stored in checkpoints."""

    step: int = 0
    """Completed optimizer steps."""
    samples: int = 0
    """Samples over all ranks, as of the last log point."""
    tokens: int = 0
    """Tokens of this rank's samples without padding, if the suite counts them."""
    full_tokens: int = 0
    """Those of as many samples of full length."""
    computed_tokens: int = 0
    """All that the model computed, with padding."""
    epoch: int = 0
    """Completed epochs."""
    position: int = 0
    """Completed steps of the current epoch."""
    next_log: int = 1
    """The step after which the next STEP_END is logged."""
    loss: float = math.nan
    """The mean loss of the steps of the last log point."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None if the training data do not know it."""
    converged: bool = False
    """Whether an evaluation reached all targets."""
    train_time: float = 0.0
    eval_time: float = 0.0
    init_eval_time: float = 0.0
    """The evaluation before the training, which is no part of ``train_time``."""
    check_time: float = 0.0
    """Comparing steps with the suite's own, and replicas with each other."""
    save_time: float = 0.0
    compute_time: float = 0.0
    input_wait_time: float = 0.0

    def add_tokens(self, counted: tuple[int, int, int]) -> None:
        """Add what the suite's ``count_tokens`` returned for a batch."""
        tokens, full, computed = counted
        self.tokens += tokens
        self.full_tokens += full
        self.computed_tokens += computed

    def set(self, values: Mapping[str, Any]) -> None:
        """Take the values of a checkpoint."""
        for name, value in values.items():
            setattr(self, name, value)


@dataclass
class LastEvaluation:
    """The step, the samples over all ranks and the metrics of the last evaluation."""

    step: int = -1
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
