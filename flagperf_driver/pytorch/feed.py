"""Batches on their way to the device."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator

from flagperf_driver.pytorch import device as devices
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
