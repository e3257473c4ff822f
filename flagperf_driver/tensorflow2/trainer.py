"""TensorFlow's side of a training: the whole step is one graph."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from flagperf_driver import seeds
from flagperf_driver.driver import Rank
from flagperf_driver.tensorflow2 import device, distributed
from flagperf_driver.tensorflow2.optimizers import TensorFlowOptimizer
from flagperf_driver.tensorflow2.states import TensorFlowStates, seed_generators
from flagperf_driver.tensorflow2.steps import TensorFlowSteps
from flagperf_driver.training.base import BaseTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import Context
from flagperf_driver.training.timeline import Timeline

_FIRST_SCALE, _GROW_AFTER = 2.0**15, 2000.0
"""The loss scale of fp16 at the begin, and the number of steps without overflow after which it is doubled."""


class TensorFlowTrainer(BaseTrainer):
    """Trains with the steps of a suite."""

    compiles = True

    def __init__(self, rank: Rank, ctx: Context, steps: TensorFlowSteps, meeting: Meeting) -> None:
        config = ctx.config
        keras.backend.clear_session()  # names of layers are counted from 0, as in every other process
        device.set_precision(config.precision)
        keras.utils.set_random_seed(seeds.derive(ctx.seed, seeds.MODEL) % 2**31)
        self.model = steps.create_model(ctx)
        seed_generators(self.model, seeds.derive(ctx.seed, seeds.RANK, ctx.rank))
        self._weights = self.model.trainable_variables
        self.optimizer = TensorFlowOptimizer(config, {weight.path: weight for weight in self._weights})
        scales = config.precision == "fp16"
        # The loss scale, and the number of steps since its last change.
        self._scale = tf.Variable([_FIRST_SCALE if scales else 1.0, 0.0], trainable=False)
        self._scales = scales
        summed = self._weights if config.gradient_accumulation_steps > 1 else ()
        self._sums = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in summed]
        self._more = tf.function(self._add, autograph=False, jit_compile=config.compile or None)
        self._last = tf.function(self._step, autograph=False, jit_compile=config.compile or None)
        self._evaluate_in_graph = tf.function(self._evaluate_eagerly, autograph=False)
        self.marks = device.marks()
        super().__init__(rank, ctx, steps, meeting, TensorFlowStates(self.model, self.optimizer, self._scale))

    def describe(self) -> dict[str, Any]:
        libraries = {"tensorflow2": tf.__version__, "keras": keras.__version__}
        return {
            **self._described(libraries, device.name(), self.optimizer.name),
            "parameters": sum(int(tf.size(weight)) for weight in self._weights),
        }

    # -- the graphs ----------------------------------------------------------------------------------------

    def _gradients(self, batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss of a micro-step and its part of the scaled gradients."""
        with tf.GradientTape() as tape:
            loss = tf.cast(self._steps.calculate_loss(self._ctx, self.model, batch), tf.float32) / self._accumulation
            scaled = loss * self._scale[0] if self._scales else loss
        return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(scaled, self._weights)]

    def _step(self, batch: Any, rate: tf.Tensor) -> tf.Tensor:
        """Compute the last micro-step, and the update with the gradients of all of them."""
        loss, gradients = distributed.replicated(self._averaged, batch)
        self._update(gradients, rate)
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        return loss

    def _averaged(self, batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss, gradients = self._gradients(batch)
        if self._sums:
            gradients = [total + gradient for total, gradient in zip(self._sums, gradients)]
        return loss, distributed.mean(gradients)

    def _add(self, batch: Any) -> tf.Tensor:
        """Compute a micro-step that is not the last one."""
        loss, gradients = self._gradients(batch)
        for total, gradient in zip(self._sums, gradients):
            total.assign_add(gradient)
        return loss

    def _update(self, gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        """Update the weights; with a loss scale, leave out a step whose gradients are not finite."""
        if not self._scales:
            self.optimizer.apply(gradients, rate)
            return
        scale, steps = self._scale[0], self._scale[1]
        gradients = [gradient / scale for gradient in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])

        def apply() -> tf.Tensor:
            self.optimizer.apply(gradients, rate)
            grows = steps + 1.0 >= _GROW_AFTER
            return tf.stack([tf.where(grows, scale * 2.0, scale), tf.where(grows, 0.0, steps + 1.0)])

        self._scale.assign(tf.cond(finite, apply, lambda: tf.stack([scale / 2.0, 0.0])))

    # -- training ------------------------------------------------------------------------------------------

    def _micro_step(self, batch: Any, timeline: Timeline, *, last: bool) -> Any:  # noqa: ARG002 - a graph has no marks
        return self._last(batch, tf.constant(self._next_rate(), tf.float32)) if last else self._more(batch)

    def _forget_gradients(self) -> None:
        for total in self._sums:
            total.assign(tf.zeros_like(total))

    # -- the device ----------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        device.synchronize()

    def peak_memory(self) -> int | None:
        name = device.accelerator()
        return int(tf.config.experimental.get_memory_info(name)["peak"]) if name else None
