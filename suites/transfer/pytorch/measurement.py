"""Copies between a host and its device, from pageable and from pinned memory; all ranks copy at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

DIRECTIONS = ("h2d", "d2h", "both")
"""Host to device, device to host, and both at the same time on two streams."""


class Transfer(Measurement):
    """Copies of random bytes between existing arrays. On the CPU both arrays are in the host's memory."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._run: Callable[[int], None] = lambda _: None
        self._pins = devices.pins(ctx.device)
        self._stream = ctx.hooks.copy_stream(ctx.device)

    def points(self) -> Iterator[Point]:
        for memory in ("pageable", "pinned") if self._pins else ("pageable",):
            for direction in DIRECTIONS:
                # Copies of pageable memory return when they are done, so there is no second one beside them.
                if direction == "both" and (memory == "pageable" or self._stream is None):
                    continue
                for size in sorted(self._ctx.config.sizes):
                    name = f"{direction}_{memory}"
                    values = {"direction": direction, "memory": memory, "bytes": size}
                    yield Point(f"{name} {size}", values, series=name)

    def work(self, point: Point) -> Mapping[str, float]:
        direction, memory, size = (point.values[name] for name in ("direction", "memory", "bytes"))
        return {f"{direction}_{memory}": float(size * (2 if direction == "both" else 1))}

    def prepare(self, point: Point) -> None:
        direction, memory, size = (point.values[name] for name in ("direction", "memory", "bytes"))
        # Written before: all untouched pages may be the same page of zeros.
        host = torch.randint(0, 256, (size,), dtype=torch.uint8)
        if memory == "pinned":
            host = host.pin_memory()
        device = host.to(self._ctx.device, copy=True)
        if direction == "both":
            back = torch.empty_like(host, pin_memory=True)
            self._run = _both(self._ctx.device, self._stream, (device, host), (back, device.clone()))
        else:
            self._run = _one(device, host) if direction == "h2d" else _one(host, device)

    def run(self, iterations: int) -> None:
        self._run(iterations)

    def release(self) -> None:
        self._run = lambda _: None


def _one(target: torch.Tensor, source: torch.Tensor) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        for _ in range(iterations):
            target.copy_(source, non_blocking=True)

    return run


def _both(
    device: torch.device,
    stream: object,
    here: tuple[torch.Tensor, torch.Tensor],
    there: tuple[torch.Tensor, torch.Tensor],
) -> Callable[[int], None]:
    """Return a call that copies ``here`` on the current stream, and ``there`` on the other one, between two marks."""
    backend = devices.backend(device)
    copy_here, copy_there = _one(*here), _one(*there)

    def run(iterations: int) -> None:
        current = backend.current_stream()
        stream.wait_stream(current)  # type: ignore[attr-defined]
        with backend.stream(stream):
            copy_there(iterations)
        copy_here(iterations)
        current.wait_stream(stream)

    return run
