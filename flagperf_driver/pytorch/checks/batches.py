"""Batches for the comparison of steps."""

from __future__ import annotations

import random
from typing import Any

import torch

from flagperf_driver.training.batches import converted


def is_array(item: Any) -> bool:
    """Return whether the item is a tensor or a numpy array."""
    return isinstance(item, torch.Tensor) or (type(item).__module__ == "numpy" and type(item).__name__ == "ndarray")


def copied(batch: Any) -> Any:
    """Return the batch with copies of its tensors and arrays."""
    return converted(batch, lambda item: _copy(item) if is_array(item) else item)


def with_copies(batch: Any, draw: random.Random) -> Any:
    """Return the batch with one sample in the places of a random half of the samples.

    A step that leaves out samples gives the copied sample another weight. Only for batches of arrays with one row for
    each sample; others are returned as they are.
    """
    arrays: list[Any] = []
    others: list[Any] = []
    converted(batch, lambda item: (arrays if is_array(item) else others).append(item))
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    count = lengths.pop() if len(lengths) == 1 else 0
    # A number could count what is in the batch, so it would be wrong after the change.
    if count < 2 or any(item is not None and not isinstance(item, bool) for item in others):
        return copied(batch)
    rows = list(range(count))
    sample = draw.randrange(count)
    for row in draw.sample(rows, count // 2):
        rows[row] = sample
    return converted(batch, lambda item: item[rows] if is_array(item) else item)


def _copy(array: Any) -> Any:
    return array.clone() if isinstance(array, torch.Tensor) else array.copy()
