"""Bandwidth of a device's memory by operation and size, and how much of the memory can be allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import capacity
import torch

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context, distributed
from flagperf_driver.pytorch import device as devices

OPERATIONS = {"copy": (2, 2), "read": (1, 1), "write": (1, 1), "update": (1, 2)}
"""By operation the number of arrays, and how many times the bytes of an array are read or written in all.

A CPU also reads a line of memory before it writes a part of it. This is not counted, as in STREAM.
"""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_BEYOND_CACHE = 4
"""An array of so many times the size of the last cache is not kept in it."""
_SMALLEST_SHARE = 8
"""An array is at most this part of the memory."""


class MainMemory(Measurement):
    """Arrays of random numbers in fp32, each one allocation that was written before."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._call: Callable[[], object] = lambda: None
        self._capacity: tuple[int, str] | None = None

    def points(self) -> Iterator[Point]:
        device = self._ctx.device
        # Hosts differ in their free memory and their caches, but all ranks measure the same sizes.
        (memory,) = distributed.minimum([self._memory()], device)
        (cache,) = distributed.maximum([last_cache(device)], device)
        sizes = sizes_up_to(int(memory) // _SMALLEST_SHARE, self._ctx.config.sizes, int(cache))
        for operation in OPERATIONS:
            for size in sizes:
                yield Point(f"{operation} {size}", {"operation": operation, "bytes": size}, series=operation)
        if self._ctx.config.capacity_most != 0:
            yield Point("capacity")

    def work(self, point: Point) -> Mapping[str, float]:
        if not point.values:
            return {}
        operation, size = point.values["operation"], point.values["bytes"]
        return {f"{operation}_bandwidth": float(OPERATIONS[operation][1] * size)}

    def prepare(self, point: Point) -> None:
        if not point.values:
            self._capacity = self._allocated()
            return
        operation, count = point.values["operation"], point.values["bytes"] // 4
        arrays = [torch.rand(count, device=self._ctx.device) for _ in range(OPERATIONS[operation][0])]
        self._call = _call(operation, arrays)

    def run(self, iterations: int) -> None:
        call = self._call
        for _ in range(iterations):
            call()

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        if self._capacity is not None:
            return {"capacity": float(self._capacity[0])}
        return super().figures(point, seconds)

    def facts(self) -> Mapping[str, Any]:
        if self._capacity is None:
            return {"last_cache": last_cache(self._ctx.device)}
        return {"ended_by": self._capacity[1]}

    def release(self) -> None:
        self._call = lambda: None
        self._capacity = None

    def _memory(self) -> int:
        """Return the bytes of the device's memory, or of the host's that this rank may use."""
        if not devices.is_host(self._ctx.device):
            properties = getattr(devices.backend(self._ctx.device), "get_device_properties", None)
            total = getattr(properties(self._ctx.device), "total_memory", 0) if properties else 0
            if total:
                return int(total)
        return capacity.host_ceiling(self._ctx.local_world_size)

    def _allocated(self) -> tuple[int, str]:
        device, most = self._ctx.device, self._ctx.config.capacity_most
        # No heartbeat meanwhile, not of ranks that wait for this one either.
        most_s = self._ctx.config.hang_timeout_s / 2
        if devices.is_host(device):
            ceiling = capacity.host_ceiling(self._ctx.local_world_size)
            return capacity.of_host(min(ceiling, most) if most else ceiling, most_s)
        if empty_cache := getattr(devices.backend(device), "empty_cache", None):
            empty_cache()
        result = capacity.allocated(
            lambda size: torch.empty(size, dtype=torch.uint8, device=device),
            capacity.DEVICE_STEP,
            capacity.DEVICE_LEAST,
            most,
            most_s,
        )
        if empty_cache:
            empty_cache()
        return result


def _call(operation: str, arrays: list[torch.Tensor]) -> Callable[[], object]:
    first = arrays[0]
    if operation == "copy":
        return lambda: arrays[1].copy_(first)
    if operation == "read":
        total = torch.empty((), device=first.device)
        return lambda: torch.sum(first, 0, out=total)
    if operation == "write":
        return lambda: first.fill_(1.5)
    return first.neg_


def sizes_up_to(most: int, sizes: list[int], cache: int) -> list[int]:
    """Return the sizes of at most ``most`` bytes; the largest is beyond the last cache, if one may be."""
    allowed = sorted(size for size in sizes if size <= most)
    beyond = 1 << max(0, _BEYOND_CACHE * cache - 1).bit_length()
    return [*allowed, beyond] if (not allowed or allowed[-1] < _BEYOND_CACHE * cache) and beyond <= most else allowed


def last_cache(device: torch.device, folder: Path = _CACHES) -> int:
    """Return the bytes of the last cache before the memory; 0 if unknown."""
    if not devices.is_host(device):
        properties = getattr(devices.backend(device), "get_device_properties", None)
        return int(getattr(properties(device), "L2_cache_size", 0)) if properties else 0
    texts = (file.read_text().strip() for file in folder.glob("index*/size"))
    return max((int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]] for text in texts), default=0)
