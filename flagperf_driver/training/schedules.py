"""Learning-rate schedules: a linear warm-up, then the schedule that the config names."""

from __future__ import annotations

import math
from typing import Any, Callable

Factor = Callable[[int], float]
"""Returns the factor of the configured learning rate for step 1, 2, ..."""


def factor(config: Any) -> Factor:
    """Return the function that computes each step's factor of the configured learning rate."""
    after = _after_warmup(config)
    warmup = config.lr_warmup_steps

    def both(step: int) -> float:
        return step / warmup if step <= warmup else after(step)

    return both


def _after_warmup(config: Any) -> Factor:
    kind = config.lr_schedule
    if kind == "constant":
        return lambda _step: 1.0
    if kind == "step":
        if not config.lr_step_steps:
            raise ValueError("lr_schedule='step' needs lr_step_steps, the number of steps of each learning rate")
        return lambda step: float(config.lr_gamma ** ((step - 1) // config.lr_step_steps))
    if kind in ("linear", "cosine"):
        progress = _progress(config)
        if kind == "linear":
            return lambda step: 1.0 - progress(step)
        return lambda step: 0.5 * (1.0 + math.cos(math.pi * progress(step)))
    raise ValueError(f"lr_schedule={kind!r}: unknown schedule; choose from constant, linear, cosine, step")


def _progress(config: Any) -> Factor:
    """Return the progress after the warm-up: 0 at its first step, 1 only after the last step."""
    end = config.lr_decay_steps or config.max_steps
    if not end:
        raise ValueError(f"lr_schedule={config.lr_schedule!r} needs an end; set lr_decay_steps or max_steps")
    start = config.lr_warmup_steps
    return lambda step: min(1.0, (step - 1 - start) / max(1, end - start))
