"""Checks of ResNet-50 in TensorFlow 2: its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import data
import numpy as np
import steps
import tensorflow as tf
from checking import context
from common.images import sources
from common.images.folders import Images


def check_evaluation_counts_every_image_once() -> None:
    def oracle(labels: Any, training: bool) -> Any:
        """Return scores that are correct for all digits except 3, for which the correct class is second."""
        assert not training
        of_three = tf.constant([0.0, 0, 0, 0.5, 1, 0, 0, 0, 0, 0])
        return tf.where((labels == 3)[:, None], of_three, tf.one_hot(labels, 10))

    usual, totals, threes = steps.pixels, np.zeros(4), 0
    steps.pixels = lambda _, batch: batch.pixels
    try:
        for rank in range(3):
            ctx = replace(context(eval_batch_size=50), rank=rank, world_size=3)
            for batch in data.create_eval_data(ctx):
                threes += int((batch.labels == 3).sum())
                labels = tf.convert_to_tensor(batch.labels)
                totals += steps.evaluate_batch(ctx, oracle, Images(labels, labels)).numpy()
    finally:
        steps.pixels = usual
    metrics = sources.summarize(context(), totals.tolist())
    assert totals[3] == 360
    assert abs(metrics["top1"] - (1 - threes / 360)) < 1e-12
    assert metrics["top5"] == 1.0


def check_pixels_are_normalised_and_mirrored() -> None:
    bytes_of = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    batch = Images(tf.constant(bytes_of), tf.constant([0, 1]), tf.constant([False, True]))
    values = steps.pixels(context(), batch).numpy()
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(values[0], (bytes_of[0] / 255 - mean) / deviation, rtol=1e-4)
    np.testing.assert_allclose(values[1], (bytes_of[1][:, ::-1] / 255 - mean) / deviation, rtol=1e-4)


def check_smoothed_labels_change_the_loss() -> None:
    scores = tf.constant(np.random.default_rng(1).standard_normal((4, 10)).astype(np.float32))
    batch = Images(tf.zeros((4, 2, 2, 3), tf.uint8), tf.constant([1, 2, 3, 4]))
    likely = scores.numpy() - np.log(np.exp(scores.numpy()).sum(1, keepdims=True))
    right = -likely[np.arange(4), [1, 2, 3, 4]].mean()
    for smoothing in (0.0, 0.1):
        loss = steps.calculate_loss(context(label_smoothing=smoothing), lambda _, training: scores, batch)  # noqa: ARG005
        np.testing.assert_allclose(float(loss), (1 - smoothing) * right - smoothing * likely.mean(), rtol=1e-5)
