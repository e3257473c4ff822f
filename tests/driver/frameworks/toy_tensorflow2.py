"""The toy in TensorFlow 2."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
import toy_data  # type: ignore[import-not-found]
from keras import layers

from flagperf_driver.tensorflow2 import Context, Steps, main
from flagperf_driver.tensorflow2.main import join as join  # the scenarios use it
from flagperf_driver.tensorflow2.trainer import TensorFlowTrainer as Trainer

FIRST_BIAS = "first/bias"
"""The name of the hidden layer's bias in this framework."""
RESUMED_DROPOUT = 0.3
"""The share of dropped values in trainings that are resumed."""


def create_model(ctx: Context) -> keras.Model:
    named = {name: layers.Dense(size, name=name) for name, size in (("first", 32), ("last", toy_data.CLASSES))}
    parts = [keras.Input((toy_data.INPUTS,)), named["first"], layers.ReLU()]
    if ctx.config.norm:
        parts.append(layers.BatchNormalization(momentum=0.9, name="norm"))
    if ctx.config.dropout:
        parts.append(layers.Dropout(ctx.config.dropout))
    model = keras.Sequential([*parts, named["last"]])
    initial = toy_data.initial()
    for name, layer in named.items():
        layer.set_weights([initial[f"{name}.weight"], initial[f"{name}.bias"]])
    return model


def calculate_loss(ctx: Context, model: keras.Model, batch: Any) -> tf.Tensor:
    scores = tf.cast(model(batch["values"], training=True), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], scores)
    return tf.reduce_mean(losses) + tf.reduce_mean(batch["added"])


def evaluate_batch(ctx: Context, model: keras.Model, batch: Any) -> tf.Tensor:
    right = tf.argmax(model(batch["values"], training=False), 1) == batch["labels"]
    return tf.stack([tf.reduce_sum(tf.cast(right, tf.int32)), tf.size(batch["labels"])])


NAMES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def weights(trainer: Trainer) -> dict[str, Any]:
    """Return the trained weights, each (inputs, outputs), and the statistics of the batch norm."""
    trained = {}
    for path, value in trainer.states.weights().items():
        layer, name = path.split("/")[-2:]
        trained[f"{layer}.{NAMES[name]}"] = value.tolist()
    statistics = {f"norm.statistics.{name}": value.tolist() for name, value in trainer.states.statistics().items()}
    return {**trained, **statistics}


STEPS = Steps(create_model=create_model, calculate_loss=calculate_loss, evaluate_batch=evaluate_batch, **toy_data.STEPS)

if __name__ == "__main__":
    main(STEPS)
