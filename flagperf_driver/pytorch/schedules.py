"""The learning rate of each optimizer step: a linear warm-up, then what the config names."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Protocol

from torch.optim import Optimizer


class Scheduler(Protocol):
    """What the loop calls; every scheduler of torch is one."""

    def step(self) -> None: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


Factor = Callable[[int], float]
"""Of step 1, 2, ...: what the configured learning rate is multiplied by."""


class Schedule:
    """Sets each group's learning rate for the step to come: LambdaLR at a tenth of its cost."""

    def __init__(self, optimizer: Optimizer, factor: Factor) -> None:
        self._optimizer = optimizer
        self._factor = factor
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self._done = 0
        self._set()

    def step(self) -> None:
        """One optimizer step is done."""
        self._done += 1
        self._set()

    def state_dict(self) -> Mapping[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._done = int(state_dict["done"])
        self._set()

    def _set(self) -> None:
        factor = self._factor(self._done + 1)
        for group, peak in zip(self._optimizer.param_groups, self._peaks):
            group["lr"] = peak * factor


def create(config: Any, optimizer: Optimizer) -> Scheduler:
    """The schedule that the config describes."""
    return Schedule(optimizer, factor(config))


def factor(config: Any) -> Factor:
    """Which part of the configured learning rate each step takes."""
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
            raise ValueError("lr_schedule='step' needs lr_step_steps: how many steps each rate lasts")
        return lambda step: float(config.lr_gamma ** ((step - 1) // config.lr_step_steps))
    if kind in ("linear", "cosine"):
        progress = _progress(config)
        if kind == "linear":
            return lambda step: 1.0 - progress(step)
        return lambda step: 0.5 * (1.0 + math.cos(math.pi * progress(step)))
    raise ValueError(f"lr_schedule={kind!r}: there is constant, linear, cosine and step")


def _progress(config: Any) -> Factor:
    """From 0 at the first step after the warm-up towards 1, which is reached only after the last step."""
    end = config.lr_decay_steps or config.max_steps
    if not end:
        raise ValueError(f"lr_schedule={config.lr_schedule!r} needs its end: set lr_decay_steps or max_steps")
    start = config.lr_warmup_steps
    return lambda step: min(1.0, (step - 1 - start) / max(1, end - start))
