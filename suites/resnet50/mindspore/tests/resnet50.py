"""Checks of ResNet-50 in MindSpore: its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import data
import mindspore as ms
import numpy as np
import steps
from checking import context
from common.images import sources
from common.images.folders import Images


def check_evaluation_counts_every_image_once() -> None:
    def oracle(labels: Any) -> Any:
        """Return scores that are correct for all digits except 3, for which the correct class is second."""
        of_three = ms.Tensor([0.0, 0, 0, 0.5, 1, 0, 0, 0, 0, 0])
        return ms.ops.select((labels == 3).reshape(-1, 1), of_three, ms.Tensor(np.eye(10, dtype=np.float32))[labels])

    usual, totals, threes = steps.pixels, np.zeros(4), 0
    steps.pixels = lambda batch: batch["labels"]
    try:
        for rank in range(3):
            ctx = replace(context(eval_batch_size=50), rank=rank, world_size=3)
            for batch in data.create_eval_data(ctx):
                threes += int((batch.labels == 3).sum())
                totals += steps.evaluate_batch(ctx, oracle, steps.prepare_batch(ctx, batch)).asnumpy()
    finally:
        steps.pixels = usual
    metrics = sources.summarize(context(), totals.tolist())
    assert totals[3] == 360
    assert abs(metrics["top1"] - (1 - threes / 360)) < 1e-12
    assert metrics["top5"] == 1.0


def check_pixels_are_normalised_and_mirrored() -> None:
    bytes_of = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = ((bytes_of / 255 - mean) / deviation).transpose(0, 3, 1, 2)
    for mirrored in (None, np.array([False, True])):
        batch = Images(bytes_of, np.array([0, 1]), mirrored)
        values = steps.pixels(steps.prepare_batch(context(), batch)).asnumpy()
        np.testing.assert_allclose(values[0], expected[0], rtol=1e-4)
        np.testing.assert_allclose(values[1], expected[1] if mirrored is None else expected[1][..., ::-1], rtol=1e-4)


def check_smoothed_labels_change_the_loss() -> None:
    scores = np.random.default_rng(1).standard_normal((4, 10)).astype(np.float32)
    images = Images(np.zeros((4, 2, 2, 3), np.uint8), np.array([1, 2, 3, 4]))
    batch = steps.prepare_batch(context(), images)
    likely = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    right = -likely[np.arange(4), [1, 2, 3, 4]].mean()
    for smoothing in (0.0, 0.1):
        loss = steps.calculate_loss(context(label_smoothing=smoothing), lambda _: ms.Tensor(scores), batch)
        np.testing.assert_allclose(float(loss), (1 - smoothing) * right - smoothing * likely.mean(), rtol=1e-5)
