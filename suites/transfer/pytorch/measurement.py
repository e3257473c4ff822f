"""Copies between a host and its device, from pageable and from pinned memory; all ranks copy at the same time.

The copied bytes are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from common.measuring.answers import SHIFTS, Numbers, Samples

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

DIRECTIONS = ("h2d", "d2h", "both")
"""Host to device, device to host, and both at the same time on two streams."""
_PAGE = 4096
"""The bytes that an iteration copies begin one page later than those of the one before."""


class Transfer(Measurement):
    """Copies of random bytes between existing arrays. On the CPU both arrays are in the host's memory."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._run: Callable[[int], None] = lambda _: None
        self._copies: list[Copies] = []
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
        pin = memory == "pinned"
        here, there = (Copies(self._ctx, size, to_device=to_device, pin=pin) for to_device in (True, False))
        self._copies = {"h2d": [here], "d2h": [there], "both": [here, there]}[direction]
        self._run = _both(self._ctx.device, self._stream, here, there) if direction == "both" else self._copies[0]

    def run(self, iterations: int) -> None:
        self._run(iterations)

    def check(self, point: Point) -> None:
        for copies in self._copies:
            copies.check(f"rank {self._ctx.rank}: {point.name}")

    def release(self) -> None:
        self._run = lambda _: None
        self._copies = []


class Copies:
    """Copies in one direction."""

    def __init__(self, ctx: Context, size: int, *, to_device: bool, pin: bool) -> None:
        self._numbers = Numbers([ctx.seed, ctx.rank, to_device], torch.uint8)
        self._samples = Samples(ctx.device)
        host = {"dtype": torch.uint8, "pin_memory": pin}
        device = {"dtype": torch.uint8, "device": ctx.device}
        of_source, of_target = (host, device) if to_device else (device, host)
        # Both are written before: all untouched pages may be the same page of zeros.
        source = self._numbers.fill(torch.empty(size + (SHIFTS - 1) * _PAGE, **of_source))
        self._target = torch.zeros(size, **of_target)
        self._sources = [source[shift * _PAGE :][:size] for shift in range(SHIFTS)]

    def __call__(self, iterations: int) -> None:
        samples, target = self._samples, self._target
        for _ in range(iterations):
            target.copy_(self._sources[samples.iteration % SHIFTS], non_blocking=True)
            samples.after(target, len(target))

    def check(self, work: str) -> None:
        self._samples.check(work, lambda iteration, places: self._numbers.at(places + iteration % SHIFTS * _PAGE))


def _both(
    device: torch.device, stream: object, copy_here: Callable[[int], None], copy_there: Callable[[int], None]
) -> Callable[[int], None]:
    """Return a call that copies in one direction on the current stream, and in the other one on ``stream``."""
    backend = devices.backend(device)

    def run(iterations: int) -> None:
        current = backend.current_stream()
        stream.wait_stream(current)  # type: ignore[attr-defined]
        with backend.stream(stream):
            copy_there(iterations)
        copy_here(iterations)
        current.wait_stream(stream)

    return run
