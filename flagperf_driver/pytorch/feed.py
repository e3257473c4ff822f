"""Prepare batches and copy them to the device."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Iterator

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.training.batches import begin_epoch


def epoch_batches(ctx: PyTorchContext, data: Any, number: int, start: int) -> Iterator[Any]:
    """Return the epoch's batches from ``start``, the same number on every rank."""

    def minimum(value: int) -> int:
        return int(distributed.minimum([value], ctx.device)[0])

    return itertools.islice(data, *begin_epoch(data, number, start, minimum))


def preparation(ctx: PyTorchContext, steps: PyTorchSteps) -> Callable[[Any], Any]:
    """Return the function that prepares a batch, if possible in parallel to the work that is already submitted."""
    if ctx.device.type not in _COPY_STREAMS:
        _COPY_STREAMS[ctx.device.type] = ctx.hooks.copy_stream(ctx.device)
    copy_stream = _COPY_STREAMS[ctx.device.type]
    if copy_stream is None:
        return functools.partial(steps.prepare_batch, ctx)
    return functools.partial(_copied, ctx, steps, copy_stream)


_COPY_STREAMS: dict[str, Any] = {}
"""By device type. All passes share one stream, because memory cached for one stream cannot be used by another."""


def _copied(ctx: PyTorchContext, steps: PyTorchSteps, copy_stream: Any, batch: Any) -> Any:
    """Copy the batch in a stream of its own, so that the copy runs in parallel to the previous step."""
    backend = devices.backend(ctx.device)
    with backend.stream(copy_stream):
        prepared = steps.prepare_batch(ctx, batch)
    current = backend.current_stream()
    current.wait_stream(copy_stream)
    for tensor in devices.tensors(prepared):
        if tensor.device.type == ctx.device.type:
            # Keep the memory until this step has read it; else the next copy could reuse it.
            tensor.record_stream(current)
    return prepared
