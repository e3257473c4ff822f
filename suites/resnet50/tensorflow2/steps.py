"""The steps of the training that depend on TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import tensorflow as tf
from common.images import sources
from common.images.folders import Images

if TYPE_CHECKING:
    from flagperf_driver.tensorflow2 import Context


def pixels(ctx: Context, batch: Images) -> tf.Tensor:
    """Return the bytes as normalised numbers, mirrored where the batch says so; this runs on the device."""
    mean, deviation = (tf.constant(sources.setting(ctx, name)) for name in ("pixel_mean", "pixel_deviation"))
    values = batch.pixels
    if batch.mirrored is not None:
        values = tf.where(batch.mirrored[:, None, None, None], values[:, :, ::-1], values)
    return (tf.cast(values, tf.float32) / 255.0 - mean) / deviation


def calculate_loss(ctx: Context, model: keras.Model, batch: Images) -> tf.Tensor:
    """Return the mean cross entropy."""
    classes, smoothing = ctx.config.num_classes, ctx.config.label_smoothing
    wanted = tf.one_hot(batch.labels, classes) * (1.0 - smoothing) + smoothing / classes
    scores = model(pixels(ctx, batch), training=True)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, scores))


def evaluate_batch(ctx: Context, model: keras.Model, batch: Images) -> tf.Tensor:
    """Return the number of correct top-1 and top-5 predictions, the sum of the loss, and the number of images."""
    scores = model(pixels(ctx, batch), training=False)
    best = tf.math.top_k(scores, min(5, ctx.config.num_classes)).indices
    hits = tf.cast(tf.cast(best, batch.labels.dtype) == batch.labels[:, None], tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.labels, scores)
    count = tf.cast(tf.shape(scores)[0], tf.float32)
    return tf.stack([tf.reduce_sum(hits[:, 0]), tf.reduce_sum(hits), tf.reduce_sum(losses), count])
