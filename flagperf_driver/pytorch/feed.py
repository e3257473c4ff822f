"""Prepare batches and copy them to the device."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.steps import Context, Steps


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
    for owner in (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    end = None
    if hasattr(data, "__len__"):
        end = int(distributed.minimum([len(data)], ctx.device)[0])
    if start and hasattr(data, "skip"):
        # Faster than reading and discarding the batches before the checkpoint.
        data.skip(start)
        start, end = 0, end if end is None else end - start
    return feed(ctx, steps, data, start, end)


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
