"""What is due after which step, by the config alone: logging, evaluations, checkpoints and the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flagperf_driver.driver import Config

MAX_WINDOW = 1000
"""Maximum number of steps between two log points, for any log_freq: their losses and marks are kept in memory."""


def window(config: Config) -> int:
    """Return the number of steps between two log points."""
    steps: int = max(1, min(config.log_freq, MAX_WINDOW))
    return steps


@dataclass(frozen=True)
class Due:
    """The parts of a training that its config plans; every step reads them."""

    throughput_only: bool
    """Whether steps are only timed: nothing is evaluated or saved, and the config's limits do not apply."""
    window: int
    """The steps between two log points."""
    last_step: int | None
    max_epochs: int | None = None
    max_samples: int | None = None
    samples_reason: str = ""
    """Why a training ends that has read ``max_samples``."""
    eval_steps: int | None = 0
    """The steps between two evaluations; 0: none, None: one after each epoch."""
    eval_start_steps: int = 0
    checkpoint_steps: int = 0
    """The steps between two checkpoints; 0: none, or ``failure_interval_s`` decides."""
    failure_interval_s: float | None = None

    @classmethod
    def of(cls, config: Config, *, throughput_only: bool) -> Due:
        if throughput_only:
            steps = config.timing_warmup_steps + config.throughput_steps
            return cls(throughput_only=True, window=window(config), last_step=steps)
        limits = (config.parity_samples, "parity"), (config.max_samples, "max_samples")
        samples, reason = min((limit for limit in limits if limit[0]), default=(None, ""))
        return cls(
            throughput_only=False,
            window=window(config),
            last_step=config.max_steps,
            max_epochs=config.max_epochs,
            max_samples=samples,
            samples_reason=reason,
            eval_steps=config.eval_steps,
            eval_start_steps=config.eval_start_steps,
            checkpoint_steps=config.checkpoint_steps or 0,
            failure_interval_s=None if config.checkpoint_steps else config.failure_interval_s,
        )

    def evaluates(self, step: int) -> bool:
        every = self.eval_steps or 0
        return every > 0 and step % every == 0 and step >= self.eval_start_steps

    def evaluates_epoch(self, step: int) -> bool:
        """Return whether an epoch that ends after this step is evaluated."""
        return self.eval_steps is None and step >= self.eval_start_steps

    def saves(self, step: int) -> bool:
        return self.checkpoint_steps > 0 and step % self.checkpoint_steps == 0

    def ends(self, step: int) -> bool:
        return self.last_step is not None and step >= self.last_step

    @property
    def end_reason(self) -> str:
        return "throughput" if self.throughput_only else "max_steps"

    def next_log(self, step: int, samples: int, samples_per_step: float) -> int:
        """Return the next multiple of the window, or an earlier step after which ``max_samples`` are reached."""
        ahead = self.window - step % self.window
        if self.max_samples and samples_per_step:
            ahead = min(ahead, max(1, math.ceil((self.max_samples - samples) / samples_per_step)))
        return step + ahead
