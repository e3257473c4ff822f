"""MindSpore's side of a training: the whole step is one graph."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from flagperf_driver import seeds
from flagperf_driver.driver import Rank
from flagperf_driver.mindspore import device
from flagperf_driver.mindspore.graphs import Graphs, LossScaling
from flagperf_driver.mindspore.optimizers import MindSporeOptimizer
from flagperf_driver.mindspore.states import MindSporeStates
from flagperf_driver.mindspore.steps import MindSporeSteps
from flagperf_driver.training.base import BaseTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import Context
from flagperf_driver.training.timeline import Timeline


class MindSporeTrainer(BaseTrainer):
    """Trains with the steps of a suite."""

    compiles = True

    def __init__(self, rank: Rank, ctx: Context, steps: MindSporeSteps, meeting: Meeting) -> None:
        config = ctx.config
        device.check_precision(config.precision)
        ms.set_seed(seeds.derive(ctx.seed, seeds.MODEL) % 2**31)
        self.model = steps.create_model(ctx)
        _seed_dropout(self.model, seeds.derive(ctx.seed, seeds.RANK, ctx.rank) % 2**31)
        if config.precision in device.LOWER:
            self.model = ms.amp.auto_mixed_precision(self.model, "auto", device.LOWER[config.precision])
        self.model.set_train(True)
        self._weights = self.model.trainable_params()
        self.optimizer = MindSporeOptimizer(config, {weight.name: weight for weight in self._weights})
        scaling = LossScaling(config.precision, self.optimizer)
        self._graphs = Graphs(ctx, steps, self.model, scaling)
        self._evaluate_in_graph = self._graphs.evaluate
        self.marks, self._on_host = device.marks(), device.is_host()
        super().__init__(rank, ctx, steps, meeting, MindSporeStates(self.model, self.optimizer, scaling.state))

    def describe(self) -> dict[str, Any]:
        return {
            **self._described({"mindspore": ms.__version__}, device.name(), self.optimizer),
            "optimizer": self.optimizer.kind,
            "parameters": sum(weight.size for weight in self._weights),
        }

    # -- training ------------------------------------------------------------------------------------------

    def _micro_step(self, batch: Any, timeline: Timeline, *, last: bool) -> Any:  # noqa: ARG002 - a graph has no marks
        if last:
            # A tensor from a number takes 33 us longer.
            loss = self._graphs.step(batch, ms.Tensor.from_numpy(np.array(self._next_rate(), np.float32)))
        else:
            loss = self._graphs.add(batch)
        # On the CPU, which has no events, wait for the step: the call of a graph returns earlier.
        return loss.asnumpy()[()] if self._on_host else loss

    def _forget_gradients(self) -> None:
        self._graphs.drop()

    # -- evaluation ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.model.set_train(False)
        yield
        self.model.set_train(True)

    # -- the device ----------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        device.synchronize()

    def peak_memory(self) -> int | None:
        return None if device.is_host() else int(ms.runtime.max_memory_allocated())


def _seed_dropout(model: nn.Cell, seed: int) -> None:
    """Let each rank draw its own masks; the seed of the weights is the same on all ranks."""
    layers = [cell for cell in model.cells_and_names() if isinstance(cell[1], nn.Dropout)]
    for number, (_, layer) in enumerate(layers):
        layer.dropout = ops.Dropout(layer.dropout.keep_prob, seed, number + 1)
