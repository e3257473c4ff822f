"""Prepare batches and copy them to the device."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.steps import Context, Steps
from flagperf_driver.training.batches import begin_epoch


def feed(ctx: Context, steps: Steps, data: Iterable[Any], start: int = 0, end: int | None = None) -> Iterator[Any]:
    """Return the prepared batches from ``start`` to ``end``."""
    host = itertools.islice(data, start, end)
    if ctx.device.type not in _COPY_STREAMS:
        _COPY_STREAMS[ctx.device.type] = ctx.hooks.copy_stream(ctx.device)
    copy_stream = _COPY_STREAMS[ctx.device.type]
    if copy_stream is None:
        return (steps.prepare_batch(ctx, batch) for batch in host)
    return _copied_ahead(ctx, steps, host, copy_stream)


def epoch_batches(ctx: Context, steps: Steps, data: Any, epoch: int, start: int) -> Iterator[Any]:
    """Return the epoch's prepared batches from ``start``, the same number on every rank."""

    def minimum(value: int) -> int:
        return int(distributed.minimum([value], ctx.device)[0])

    return feed(ctx, steps, data, *begin_epoch(data, epoch, start, minimum))


_COPY_STREAMS: dict[str, Any] = {}
"""By device type. All passes share one stream, because memory cached for one stream cannot be used by another."""


def _copied_ahead(ctx: Context, steps: Steps, host: Iterable[Any], copy_stream: Any) -> Iterator[Any]:
    """Copy batches in their own stream, so that a copy runs in parallel to the previous step."""
    backend = devices.backend(ctx.device)
    for batch in host:
        with backend.stream(copy_stream):
            prepared = steps.prepare_batch(ctx, batch)
        current = backend.current_stream()
        current.wait_stream(copy_stream)
        for tensor in devices.tensors(prepared):
            if tensor.device.type == ctx.device.type:
                # Keep the memory until this step has read it; else the next copy could reuse it.
                tensor.record_stream(current)
        yield prepared
