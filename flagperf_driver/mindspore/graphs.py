"""The compiled parts of a training: micro-steps, whole steps and evaluation."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from flagperf_driver.mindspore import device
from flagperf_driver.mindspore.nesting import Restore, flattened, restoring
from flagperf_driver.mindspore.optimizers import MindSporeOptimizer
from flagperf_driver.mindspore.steps import MindSporeSteps
from flagperf_driver.training.steps import Context

_DEPTH = 100_000
"""The limit of nested calls in a graph: the compiler nests the turns of a loop, and an optimizer has one a weight."""
_FIRST_SCALE, _GROW_AFTER = 2.0**15, 2000.0
"""The loss scale of fp16 at the begin, and the number of steps without overflow after which it is doubled."""


class LossScaling(nn.Cell):  # type: ignore[misc]
    """Updates the weights; in fp16 the loss is scaled, and a step whose gradients are not finite is left out."""

    def __init__(self, precision: str, optimizer: MindSporeOptimizer) -> None:
        super().__init__(auto_prefix=False)
        self.scales = precision == "fp16"
        self.optimizer = optimizer
        # The scale, and the number of steps since its last change.
        first = [_FIRST_SCALE if self.scales else 1.0, 0.0]
        self.state = ms.Parameter(np.array(first, np.float32), name="scale", requires_grad=False)

    def construct(self, gradients: Any, rate: Any) -> Any:
        """Update the weights with scaled gradients."""
        if not self.scales:
            return self.optimizer(gradients, rate)
        scale, steps = self.state[0], self.state[1] + 1.0
        gradients = tuple([gradient / scale for gradient in gradients])
        finite = ms.Tensor(True)
        for gradient in gradients:
            finite = ops.logical_and(finite, ops.isfinite(gradient).all())
        if finite:
            self.optimizer(gradients, rate)
            grows = steps >= _GROW_AFTER
            ops.assign(self.state, ops.stack([ops.select(grows, scale * 2.0, scale), ops.select(grows, 0.0, steps)]))
        else:
            ops.assign(self.state, ops.stack([scale / 2.0, steps * 0.0]))
        return finite


class _HostAverage(nn.Cell):  # type: ignore[misc]
    """Averages all gradients over the ranks in one exchange: on the CPU each exchange takes milliseconds."""

    def __init__(self, weights: ms.ParameterTuple, world_size: int) -> None:
        super().__init__(auto_prefix=False)
        self.shapes = [tuple(weight.shape) for weight in weights]
        self.ends = [int(end) for end in np.cumsum([math.prod(shape) for shape in self.shapes])]
        self.starts = [0, *self.ends[:-1]]
        self.total, self.world_size = ops.AllReduce(), world_size

    def construct(self, gradients: Any) -> Any:
        """Return the averages."""
        flat = self.total(ops.concat([gradient.reshape(-1) for gradient in gradients])) / self.world_size
        return tuple([flat[self.starts[i] : self.ends[i]].reshape(self.shapes[i]) for i in range(len(self.shapes))])


def _averaging(weights: ms.ParameterTuple, world_size: int) -> nn.Cell:
    if world_size == 1:
        return nn.Identity()
    if device.is_host():
        return _HostAverage(weights, world_size)
    return nn.DistributedGradReducer(weights, mean=True, degree=world_size)


class Graphs:
    """The functions of a training, each compiled once for every nesting and shape of a batch.

    The compiler reads functions and cells, not objects of other classes: what a function needs are its free variables.
    """

    def __init__(self, ctx: Context, steps: MindSporeSteps, model: nn.Cell, update: LossScaling) -> None:
        ms.set_recursion_limit(_DEPTH)
        accumulation, scale, scales = ctx.config.gradient_accumulation_steps, update.state, update.scales
        weights, constants = ms.ParameterTuple(model.trainable_params()), _constants(ctx)
        sums = _sums(weights if accumulation > 1 else ())
        world_size, calculate_loss, evaluate_batch = ctx.world_size, steps.calculate_loss, steps.evaluate_batch
        average = _averaging(weights, world_size)

        def forward(batch: Any) -> Any:
            loss = calculate_loss(constants, model, batch).astype(ms.float32)
            if accumulation > 1:
                loss = loss / accumulation
            return (loss * scale[0], loss) if scales else loss

        value_and_grad = ms.value_and_grad(forward, None, weights, has_aux=scales)

        def differentiate(batch: Any) -> Any:
            result, gradients = value_and_grad(batch)
            return (result[1] if scales else result), gradients

        def compiled(restore: Restore) -> tuple[Any, Any, Any]:
            @ms.jit  # type: ignore[untyped-decorator]
            def add(*leaves: Any) -> Any:
                loss, gradients = differentiate(restore(leaves))
                for number in range(len(sums)):
                    ops.assign_add(sums[number], gradients[number])
                return loss

            @ms.jit  # type: ignore[untyped-decorator]
            def step(rate: Any, *leaves: Any) -> Any:
                loss, gradients = differentiate(restore(leaves))
                if accumulation > 1:
                    gradients = tuple([sums[number] + gradients[number] for number in range(len(sums))])
                done = update(average(gradients), rate)
                for number in range(len(sums)):
                    ops.assign(sums[number], ops.depend(ops.zeros_like(sums[number]), done))
                return ops.depend(loss, done)

            @ms.jit  # type: ignore[untyped-decorator]
            def evaluate(*leaves: Any) -> Any:
                return evaluate_batch(constants, model, restore(leaves))

            return add, step, evaluate

        self._sums = sums
        self._compiled = functools.lru_cache(maxsize=None)(lambda nesting: compiled(restoring(nesting)))

    def add(self, batch: Any) -> Any:
        """Add the gradients of a micro-step that is not the last one; return its loss."""
        nesting, leaves = flattened(batch)
        return self._compiled(nesting)[0](*leaves)

    def step(self, batch: Any, rate: Any) -> Any:
        """Compute the last micro-step, and update the weights with the gradients of all of them; return its loss."""
        nesting, leaves = flattened(batch)
        return self._compiled(nesting)[1](rate, *leaves)

    def evaluate(self, batch: Any) -> Any:
        """Return the result of the suite's ``evaluate_batch``."""
        nesting, leaves = flattened(batch)
        return self._compiled(nesting)[2](*leaves)

    def drop(self) -> None:
        """Forget the gradients of the micro-steps since the last step."""
        for total in self._sums:
            ops.assign(total, ops.zeros_like(total))


def _sums(weights: Any) -> ms.ParameterTuple:
    """Return the sums of the gradients of micro-steps."""
    zeros = [(f"sum/{weight.name}", np.zeros(weight.shape, np.float32)) for weight in weights]
    return ms.ParameterTuple([ms.Parameter(value, name=name, requires_grad=False) for name, value in zeros])


def _constants(ctx: Context) -> Any:
    """Return the context as the compiler can read it: plain values in namespaces."""
    fields = {name: value for name, value in vars(ctx).items() if isinstance(value, (str, int, float, type(None)))}
    return SimpleNamespace(**fields, config=SimpleNamespace(**{key: getattr(ctx.config, key) for key in ctx.config}))
