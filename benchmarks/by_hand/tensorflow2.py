"""The step in TensorFlow 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from flagperf_driver.driver import Rank
from flagperf_driver.tensorflow2 import Context, Steps, device
from flagperf_driver.tensorflow2.main import join
from flagperf_driver.tensorflow2.trainer import TensorFlowTrainer
from flagperf_driver.training.meeting import Meeting
from flagperf_driver.training.steps import context_fields

device.set_device("CPU", 0)  # before TensorFlow starts its threads


def make_model(width: int, layers: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(10)])


def mean_loss(model: keras.Model, values: Any, labels: Any) -> tf.Tensor:
    scores = model(values, training=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def bare_step(model: keras.Model) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return the hand-written step."""
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.0)
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def compiled(values: Any, labels: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(model, values, labels)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    def step(values: np.ndarray, labels: np.ndarray) -> None:
        compiled(tf.constant(values), tf.constant(labels))

    return step


def trainer(rank: Rank, model: keras.Model, steps: dict[str, Any]) -> Any:
    """Return the trainer of the same step."""

    def loss(_ctx: Context, module: keras.Model, batch: Any) -> tf.Tensor:
        return mean_loss(module, *batch)

    made = Steps(create_model=lambda _: model, calculate_loss=loss, evaluate_batch=lambda *_: tf.zeros(1), **steps)
    meeting = Meeting(rank.world)
    join(rank, meeting)
    return TensorFlowTrainer(rank, Context(**context_fields(rank, Path())), made, meeting)
