"""The training whose operators are measured: its step in this process, with synthetic data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from common.training.program import context_of, steps_of
from torch import Tensor

from flagperf_driver.pytorch import Context, states, traffic
from flagperf_driver.pytorch.trainer import TorchTrainer
from flagperf_driver.training.timeline import Timeline

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
_NO_RANK: Any = None
"""A trainer reads its rank only to describe itself."""


class ChosenTraining:
    """The training that ``shapes_of`` names, with its own steps. Each step trains on the same batches."""

    def __init__(self, ctx: Context, *, compiled: bool = False) -> None:
        self.part = FORWARD
        """The part of the step that is running."""
        self._micro_steps = 0
        # Initial weights change no operator, and their file is not here. Checks of replicas do not belong to a step.
        changed = {"compile": compiled, "init_checkpoint": None, "num_workers": 0, "replica_check_steps": None}
        self.ctx = replace(context_of(ctx, ctx.config.shapes_of, **changed), synthetic=True)
        self._backward = (own := steps_of(self.ctx.suite_dir)).backward
        self._trainer = TorchTrainer(_NO_RANK, self.ctx, replace(own, backward=self._in_parts))
        data = self._trainer.epoch(1, 0)
        self._batches = [next(data) for _ in range(self.ctx.config.gradient_accumulation_steps)]

    def step(self) -> None:
        """Train one step; its work is submitted to the device, and nothing waits for it."""
        timeline = Timeline(self._trainer.marks, 0)
        timeline.resume()
        self.part, self._micro_steps = FORWARD, 0
        self._trainer.step(self._batches[0], iter(self._batches[1:]), timeline)

    def _in_parts(self, ctx: Context, loss: Tensor, scaler: Any) -> None:
        self.part = BACKWARD
        self._backward(ctx, loss, scaler)
        self._micro_steps += 1
        self.part = FORWARD if self._micro_steps < len(self._batches) else UPDATE

    # -- the state that a step changes -----------------------------------------------------------------------

    def copy_state(self) -> tuple[list[Tensor], Any]:
        """Return copies in host memory of all tensors that a step changes, and the state of the random generators."""
        copies = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors()]
        return copies, states.random_state(self.ctx.device)

    def restore(self, state: tuple[list[Tensor], Any]) -> None:
        """Set these tensors, in their own memory, and the random generators to the copies."""
        copies, random = state
        for tensor, copy in zip(self._tensors(), copies, strict=True):
            tensor.detach().copy_(copy)
        states.restore_random(random, self.ctx.device)

    def _tensors(self) -> Iterator[Tensor]:
        parts = self._trainer.parts
        scaler = [value for value in vars(parts.scaler).values() if isinstance(value, Tensor)] if parts.scaler else []
        owned = [*parts.model.parameters(), *parts.model.buffers(), *parts.optimizer.state.values(), *scaler]
        for tensor in traffic.tensors(owned):
            yield getattr(tensor, "_local_tensor", tensor)
