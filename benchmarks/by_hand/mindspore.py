"""The step in MindSpore."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from flagperf_driver.driver import Rank
from flagperf_driver.mindspore import Context, Steps
from flagperf_driver.mindspore.optimizers import MindSporeOptimizer
from flagperf_driver.mindspore.trainer import MindSporeTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import context_fields

ADAM = SimpleNamespace(
    optimizer="adamw", weight_decay=0.0, momentum=0.0, beta1=0.9, beta2=0.999, epsilon=1e-8, max_grad_norm=None,
    no_decay=(), decay_vectors=False,
)  # fmt: skip


def make_model(width: int, layers: int) -> nn.Cell:
    os.environ.setdefault("MS_DEV_JIT_PIPELINE", "0")  # as the trainer runs its graphs
    ms.set_device("CPU")
    ms.set_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Dense(width, width), nn.ReLU())]
    return nn.SequentialCell(*hidden, nn.Dense(width, 10))


def bare_step(model: nn.Cell) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return the hand-written step, with the same operations for Adam as the loop: MindSpore's own class is slower.

    The first graph of a process runs about 40 us faster than all later ones, so that neither step must be the first.
    """
    _step(make_model(1, 1))(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    return _step(model)


def _step(model: nn.Cell) -> Callable[[np.ndarray, np.ndarray], None]:
    weights = model.trainable_params()
    optimizer = MindSporeOptimizer(ADAM, {weight.name: weight for weight in weights})
    model.set_train()

    def forward(values: Any, labels: Any) -> Any:
        return ops.cross_entropy(model(values), labels)

    differentiate = ms.value_and_grad(forward, None, ms.ParameterTuple(weights))

    @ms.jit  # type: ignore[untyped-decorator]
    def compiled(values: Any, labels: Any, rate: Any) -> Any:
        loss, gradients = differentiate(values, labels)
        return ops.depend(loss, optimizer(gradients, rate))

    def step(values: np.ndarray, labels: np.ndarray) -> None:
        rate = ms.Tensor.from_numpy(np.array(1e-3, np.float32))  # each step has its own, as in any schedule
        compiled(ms.Tensor(values), ms.Tensor(labels), rate).asnumpy()  # the call returns before the step ends

    return step


def trainer(rank: Rank, model: nn.Cell, steps: dict[str, Any]) -> Any:
    """Return the trainer of the same step."""

    def loss(_ctx: Context, module: nn.Cell, batch: Any) -> Any:
        return ops.cross_entropy(module(batch[0]), batch[1])

    made = Steps(create_model=lambda _: model, calculate_loss=loss, evaluate_batch=lambda *_: ms.ops.zeros(1), **steps)
    return MindSporeTrainer(rank, Context(**context_fields(rank, Path())), made, Meeting(rank.world))
