"""Batches: passes through the training data, the same number of batches on every rank, and their conversion."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Callable


def converted(batch: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply ``convert`` to each item of a nesting of tuples, lists, dicts and dataclasses."""
    if isinstance(batch, dict):
        return {key: converted(value, convert) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(converted(item, convert) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(converted(item, convert) for item in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {item.name: converted(getattr(batch, item.name), convert) for item in fields(batch)}
        return replace(batch, **parts)
    return convert(batch)


def begin_epoch(data: Any, number: int, start: int, minimum: Callable[[int], int]) -> tuple[int, int | None]:
    """Tell the data what their order follows from; return the first batch to train, and the end if the data know it.

    ``minimum`` returns the smallest value of all ranks.
    """
    for owner in (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(number)
    end = minimum(len(data)) if hasattr(data, "__len__") else None
    if start and hasattr(data, "skip"):
        # Faster than reading and discarding the batches before the checkpoint.
        data.skip(start)
        return 0, end if end is None else end - start
    return start, end


def any_ranks(data: Any) -> bool:
    """Return whether any number of ranks reads the same samples in each step, if a step has as many samples."""
    return bool(getattr(data, "any_ranks", False))


def steps_per_epoch(data: Any, accumulation: int, minimum: Callable[[int], int]) -> int | None:
    """Return the number of optimizer steps in an epoch, which is the smallest of all ranks; None if unknown."""
    return minimum(len(data)) // accumulation if hasattr(data, "__len__") else None
