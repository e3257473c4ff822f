"""Batches on their way to the device."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.steps import Context, Steps


def feed(ctx: Context, steps: Steps, data: Iterable[Any], start: int = 0, end: int | None = None) -> Iterator[Any]:
    """The data's batches from ``start`` to ``end``, prepared."""
    host = itertools.islice(data, start, end)
    if ctx.device.type not in _ASIDE:
        _ASIDE[ctx.device.type] = ctx.hooks.copy_stream(ctx.device)
    aside = _ASIDE[ctx.device.type]
    if aside is None:
        return (steps.prepare_batch(ctx, batch) for batch in host)
    return _beside(ctx, steps, host, aside)


def epoch_batches(ctx: Context, steps: Steps, data: Any, epoch: int, start: int) -> Iterator[Any]:
    """The epoch's batches from ``start``, prepared, as many as every rank has."""
    for owner in (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
        set_epoch = getattr(owner, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    end = None
    if hasattr(data, "__len__"):
        end = int(distributed.least([len(data)], ctx.device)[0])
    if start and hasattr(data, "skip"):
        # Cheaper than to read what was trained on before the checkpoint, only to throw it away.
        data.skip(start)
        start, end = 0, end if end is None else end - start
    return feed(ctx, steps, data, start, end)


_ASIDE: dict[str, Any] = {}
"""By device type. One stream for all passes: what the allocator keeps for one stream, another cannot use."""


def _beside(ctx: Context, steps: Steps, host: Iterable[Any], aside: Any) -> Iterator[Any]:
    """In a stream of their own: the host is a step ahead, so a copy runs beside the last step's work."""
    backend = devices.backend(ctx.device)
    for batch in host:
        with backend.stream(aside):
            prepared = steps.prepare_batch(ctx, batch)
        current = backend.current_stream()
        current.wait_stream(aside)
        for tensor in devices.tensors(prepared):
            if tensor.device.type == ctx.device.type:
                # Its memory must not go to the next copy before this step has read it.
                tensor.record_stream(current)
        yield prepared
