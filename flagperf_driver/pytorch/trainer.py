"""PyTorch's side of a training: the parts of one rank's training, and one optimizer step of it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from flagperf_driver.driver import Rank
from flagperf_driver.pytorch import distributed, repeating, states, traffic
from flagperf_driver.pytorch.checks import replicas
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.evaluation import evaluate
from flagperf_driver.pytorch.feed import epoch_batches, preparation
from flagperf_driver.pytorch.hooks import forward_context, module_versions
from flagperf_driver.pytorch.parts import build, description
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.training.due import window
from flagperf_driver.training.profile import Profiler, StepBytes
from flagperf_driver.training.timeline import Timeline
from flagperf_driver.training.trainer import RankEvaluation, Repeater

_NOTHING = contextlib.nullcontext()


class TorchTrainer:
    """Trains with the steps of a suite. ``own`` are the suite's steps without those that a vendor replaced."""

    def __init__(self, rank: Rank, ctx: PyTorchContext, steps: PyTorchSteps, own: PyTorchSteps | None = None) -> None:
        self.progress = ctx.progress
        self.parts = build(ctx, steps, own or steps)
        self.marks = ctx.hooks.events(ctx.device)
        self.learning_rate = 0.0
        self.compiles = bool(ctx.config.compile)
        self.weights_digests: Callable[[], Mapping[str, str]] = lambda: replicas.digests(self.parts.model)
        self._rank, self._ctx, self._steps, self._own = rank, ctx, steps, own or steps
        self._is_counted = ctx.parallel.is_counted(ctx.rank)
        watches = ctx.world_size > 1 and ctx.config.replica_check_steps
        self._at_rest = replicas.AtRest(self.parts.model, ctx.world_size) if watches else None
        self._states = states.TorchStates(ctx, self.parts)
        self.repeater: Repeater = repeating.TorchRepeater(ctx, self.parts.model, self._states)
        self._prepared = preparation(ctx, steps)
        self._autocast = forward_context(ctx.hooks, ctx.config.precision, ctx.device)
        self.step_bytes: Callable[[Callable[[], object]], StepBytes] | None = self._count_bytes
        # Every step reads these values; attributes are faster than the config.
        self._accumulation = ctx.config.gradient_accumulation_steps
        self._max_norm = ctx.config.max_grad_norm
        self._trained = [parameter for group in self.parts.optimizer.param_groups for parameter in group["params"]]
        # One element on the device for the loss of each step of a window.
        self._losses = torch.zeros(window(ctx.config), device=ctx.device).unbind()

    def describe(self) -> dict[str, Any]:
        described = description(self._ctx, self.parts)
        described["libraries"].update(module_versions(self._rank.case.modules))
        return {**described, "replaced_hooks": self._ctx.hooks.replaced}

    # -- training ----------------------------------------------------------------------------------------

    def epoch(self, number: int, start: int) -> Iterator[Any]:
        batches = epoch_batches(self._ctx, self.parts.train_data, number, start)
        self._states.continue_random()
        return batches

    def step(self, first: Any, more: Iterator[Any], timeline: Timeline) -> int | None:
        ctx, steps, parts = self._ctx, self._steps, self.parts
        slot, samples, batch = self._losses[timeline.open_steps], 0, first
        for micro in range(1, self._accumulation + 1):
            if micro > 1:
                batch = next(more, None)
                if batch is None:
                    parts.optimizer.zero_grad(set_to_none=True)
                    timeline.drop()
                    return None
            timeline.begin()
            # A vendor may replace the preparation: tokens are counted before, and the step's time includes it.
            counted = steps.count_tokens(ctx, batch) if steps.count_tokens else None
            batch = self._prepared(batch)
            last = micro == self._accumulation
            loss = self._micro_step(batch, timeline, last=last)
            slot.copy_(loss.detach()) if micro == 1 else slot.add_(loss.detach())
            samples += steps.count_samples(ctx, batch) if self._is_counted else 0
            if counted and self._is_counted:
                self.progress.add_tokens(counted)
            if last:
                self._update()
            timeline.end()
        return samples

    def _micro_step(self, batch: Any, timeline: Timeline, *, last: bool) -> torch.Tensor:
        """Compute the gradients of a batch and return its loss."""
        model, steps = self.parts.model, self._steps
        with _NOTHING if last else distributed.unsynchronized(model):
            with self._autocast:
                loss = steps.calculate_loss(self._ctx, model, batch)
            timeline.begin_backward()
            if self._accumulation > 1:
                loss = loss / self._accumulation
            steps.backward(self._ctx, loss, self.parts.scaler)
        return loss

    def _update(self) -> None:
        """Update the weights and the learning rate."""
        optimizer, scaler = self.parts.optimizer, self.parts.scaler
        if self._at_rest:
            self._at_rest.before_update(self.progress.step + 1)
        if self._max_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            distributed.clip_gradients(self._trained, self._max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if self._at_rest:
            self._at_rest.after_update()
        optimizer.zero_grad(set_to_none=True)
        self.learning_rate = optimizer.param_groups[0]["lr"]
        self.parts.scheduler.step()

    def losses(self, steps: int) -> list[float]:
        values: list[float] = torch.stack(self._losses[:steps]).tolist()
        return values

    def changed_at_rest(self) -> tuple[str, int] | None:
        return self._at_rest.changed() if self._at_rest else None

    def step_figures(self) -> Mapping[str, float]:
        step = self._steps.step_figures
        return step(self._ctx, distributed.unwrap(self.parts.model), self.total) if step else {}

    # -- evaluation --------------------------------------------------------------------------------------

    def evaluate(self, beat: Callable[[], None]) -> RankEvaluation:
        return evaluate(self._ctx, self._own, self.parts.model, self.parts.eval_data, self.marks, beat)

    def summarize(self, results: list[Any]) -> Mapping[str, Any]:
        return self._own.summarize(self._ctx, results)

    # -- all ranks, and the device -------------------------------------------------------------------------

    def total(self, values: Sequence[float]) -> list[float]:
        return distributed.total(values, self._ctx.device)

    def gather(self, value: Any) -> list[Any]:
        return distributed.gather(value)

    def synchronize(self) -> None:
        self._ctx.hooks.synchronize(self._ctx.device)

    def peak_memory(self) -> int | None:
        return self._ctx.hooks.memory(self._ctx.device)

    def profiler(self) -> Profiler | None:
        return self._ctx.hooks.profiler(self._ctx.device)

    def _count_bytes(self, step: Callable[[], object]) -> StepBytes:
        suites = self._steps
        least = traffic.LeastTraffic(self.parts.model, self.parts.optimizer)

        def backward(ctx: PyTorchContext, loss: torch.Tensor, scaler: Any) -> None:
            least.end_forward()
            suites.backward(ctx, loss, scaler)

        self._steps = replace(suites, backward=backward)
        try:
            with least.observing():
                step()
        finally:
            self._steps = suites
        if self.compiles:
            # Compiled kernels are not operations: what they read and write is not seen.
            return StepBytes(least.bytes, None, least.gradients)
        with traffic.Traffic() as counted:
            step()
        return StepBytes(least.bytes, counted.bytes, least.gradients)

    def threads(self) -> int:
        threads: int = torch.get_num_threads()
        return threads

    # -- checkpoints -------------------------------------------------------------------------------------

    def copy_state(self) -> Callable[[Path], None]:
        return self._states.copy()

    def load_state(self, folder: Path) -> None:
        self._states.load(folder)
