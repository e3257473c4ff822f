"""The steps of the training that depend on MindSpore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from common.images import sources
from common.images.folders import Images
from mindspore import ops

if TYPE_CHECKING:
    from flagperf_driver.mindspore import Context

Batch = dict[str, ms.Tensor]
"""``pixels`` as bytes (N, H, W, 3), ``labels``, ``mirrored``, and the ``mean`` and ``deviation`` of a channel."""


def prepare_batch(ctx: Context, batch: Images) -> Batch:
    """Copy the batch to the device."""
    count = len(batch.labels)
    mirrored = np.zeros(count, bool) if batch.mirrored is None else np.asarray(batch.mirrored)
    arrays = {"pixels": batch.pixels, "labels": batch.labels.astype(np.int32), "mirrored": mirrored}
    for name in ("mean", "deviation"):
        arrays[name] = np.array(sources.setting(ctx, f"pixel_{name}"), np.float32)
    return {name: ms.Tensor(value) for name, value in arrays.items()}


def count_samples(ctx: Context, batch: Batch) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of images."""
    return len(batch["labels"])


def pixels(batch: Batch) -> ms.Tensor:
    """Return the bytes as normalised numbers (N, 3, H, W), mirrored where the batch says so."""
    values = batch["pixels"].astype(ms.float32)
    flipped = ops.reverse(values, (2,))
    values = ops.select(batch["mirrored"].reshape(-1, 1, 1, 1), flipped, values)
    values = (values / 255.0 - batch["mean"]) / batch["deviation"]
    return values.transpose(0, 3, 1, 2)


def calculate_loss(ctx: Context, model: Any, batch: Batch) -> ms.Tensor:
    """Return the mean cross entropy."""
    scores = model(pixels(batch)).astype(ms.float32)
    return ops.cross_entropy(scores, batch["labels"], label_smoothing=ctx.config.label_smoothing)


def evaluate_batch(ctx: Context, model: Any, batch: Batch) -> ms.Tensor:
    """Return the number of correct top-1 and top-5 predictions, the sum of the loss, and the number of images."""
    scores = model(pixels(batch)).astype(ms.float32)
    _, best = ops.topk(scores, min(5, ctx.config.num_classes))
    hits = (best == batch["labels"].reshape(-1, 1)).astype(ms.float32)
    losses = ops.cross_entropy(scores, batch["labels"], reduction="none")
    return ops.stack([hits[:, 0].sum(), hits.sum(), losses.sum(), ops.ones_like(losses).sum()])
