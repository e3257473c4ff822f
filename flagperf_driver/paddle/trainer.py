"""Paddle's side of a training, in its dynamic graph."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import paddle
from paddle.utils import unique_name

from flagperf_driver import seeds
from flagperf_driver.driver import Rank
from flagperf_driver.paddle import device
from flagperf_driver.paddle.states import PaddleStates
from flagperf_driver.paddle.steps import PaddleSteps
from flagperf_driver.training.base import BaseTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import Context
from flagperf_driver.training.timeline import Timeline

_NOTHING = contextlib.nullcontext()
_LOWER = {"bf16": "bfloat16", "fp16": "float16"}
"""The data type of automatic mixed precision, by precision."""


class PaddleTrainer(BaseTrainer):
    """Trains with the steps of a suite."""

    def __init__(self, rank: Rank, ctx: Context, steps: PaddleSteps, meeting: Meeting) -> None:
        config = ctx.config
        device.check_precision(config.precision)
        device.allow_tf32(config.precision != "fp32")
        paddle.seed(seeds.derive(ctx.seed, seeds.MODEL))
        unique_name.switch()  # the names in the optimizer's state are counted from 0, as in every other process
        self.model = steps.create_model(ctx)
        self.optimizer = steps.create_optimizer(ctx, self.model)
        self.model.train()
        self._wrapped = paddle.DataParallel(self.model) if ctx.world_size > 1 else self.model
        self._scaler = paddle.amp.GradScaler() if config.precision == "fp16" else None
        self._seed = seeds.derive(ctx.seed, seeds.RANK, ctx.rank)
        self._calculate_loss = steps.calculate_loss
        self.marks = device.marks()
        super().__init__(rank, ctx, steps, meeting, PaddleStates(self.model, self.optimizer, self._scaler))

    def describe(self) -> dict[str, Any]:
        libraries = {"paddle": paddle.__version__}
        if not device.is_host() and paddle.is_compiled_with_cuda():
            libraries.update(cuda=str(paddle.version.cuda()), cudnn=str(paddle.version.cudnn()))
        return {
            **self._described(libraries, device.name(), self.optimizer),
            "parameters": sum(parameter.size for parameter in self.model.parameters()),
        }

    # -- training ------------------------------------------------------------------------------------------

    def step(self, first: Any, more: Iterator[Any], timeline: Timeline) -> int | None:
        # Paddle cannot save the states of its random generators, so each step begins with its own seed.
        paddle.seed((self._seed + self.progress.step) % 2**32)
        return super().step(first, more, timeline)

    def _micro_step(self, batch: Any, timeline: Timeline, *, last: bool) -> Any:
        with _NOTHING if last or self._wrapped is self.model else self._wrapped.no_sync():
            with self._autocast():
                loss = self._calculate_loss(self._ctx, self._wrapped, batch)
            timeline.begin_backward()
            if self._accumulation > 1:
                loss = loss / self._accumulation
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        if last:
            self._update()
        return loss.detach()

    def _forget_gradients(self) -> None:
        self.optimizer.clear_grad()

    def _update(self) -> None:
        """Update the weights."""
        self.optimizer.set_lr(self._next_rate())
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.optimizer.clear_grad()

    def _autocast(self) -> Any:
        dtype = _LOWER.get(self._ctx.config.precision)
        return _NOTHING if dtype is None else paddle.amp.auto_cast(dtype=dtype)

    def _read_losses(self, losses: list[Any]) -> list[float]:
        values: list[float] = paddle.stack(losses).tolist()
        return values

    # -- evaluation ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.model.eval()
        with paddle.no_grad(), self._autocast():
            yield
        self.model.train()

    # -- the device --------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        if not device.is_host():
            paddle.device.synchronize()

    def peak_memory(self) -> int | None:
        return None if device.is_host() else int(paddle.device.max_memory_allocated())
