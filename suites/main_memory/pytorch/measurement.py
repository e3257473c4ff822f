"""Bandwidth of a device's memory by operation and size, and how much of the memory can be allocated.

The contents of the arrays are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import capacity
import torch
from common.measuring.answers import SHIFTS, Array, Numbers, Samples, below

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context, distributed
from flagperf_driver.pytorch import device as devices

OPERATIONS = {"copy": (2, 2), "read": (1, 1), "write": (1, 1), "update": (1, 2)}
"""By operation the number of arrays, and how many times the bytes of an array are read or written in all.

A CPU also reads a line of memory before it writes a part of it. This is not counted, as in STREAM.
"""
_PAGE = 1024
"""The numbers of a page of memory: the data of the next iteration begin one page later."""
_PLACES = 16
_LARGEST = 8
"""The numbers are whole and small, so that a sum in fp32 is exact in any order."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_BEYOND_CACHE = 4
"""An array of so many times the size of the last cache is not kept in it."""
_SMALLEST_SHARE = 8
"""An array is at most this part of the memory."""


class MainMemory(Measurement):
    """Arrays of random whole numbers in fp32, each one allocation that was written before."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._arrays: Arrays | None = None
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
        self._arrays = Arrays(self._ctx, point.values["operation"], point.values["bytes"] // 4)

    def run(self, iterations: int) -> None:
        assert self._arrays is not None
        call = self._arrays.call
        for _ in range(iterations):
            call()

    def check(self, point: Point) -> None:
        if self._arrays is not None:
            self._arrays.check(f"rank {self._ctx.rank}: {point.name}")

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        if self._capacity is not None:
            return {"capacity": float(self._capacity[0])}
        return super().figures(point, seconds)

    def facts(self) -> Mapping[str, Any]:
        if self._capacity is None:
            return {"last_cache": last_cache(self._ctx.device)}
        return {"ended_by": self._capacity[1]}

    def release(self) -> None:
        self._arrays = None
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
            _check_memory,
        )
        if empty_cache:
            empty_cache()
        return result


class Arrays:
    """The arrays of an operation, which differ by iteration."""

    def __init__(self, ctx: Context, operation: str, count: int) -> None:
        self._numbers = Numbers([ctx.seed, ctx.rank], torch.float32, whole=_LARGEST)
        shifted = operation in ("copy", "read")
        pages = (SHIFTS - 1) * _PAGE if shifted else 0
        source = self._numbers.fill(torch.empty(count + pages, device=ctx.device))
        self._sources = [source[shift * _PAGE :][:count] for shift in range(SHIFTS if shifted else 1)]
        of_result = {"read": 1, "copy": count}.get(operation)
        self._result = torch.zeros(of_result, device=ctx.device).squeeze() if of_result else source
        self._operation, self._count = operation, count
        self._samples = Samples(ctx.device)
        self._work = _work(operation, self._sources, self._result)

    def call(self) -> None:
        samples = self._samples
        self._work(samples.iteration)
        samples.after(self._result, self._result.numel())

    def check(self, work: str) -> None:
        self._samples.check(work, self._expected)

    def _expected(self, iteration: int, places: Array) -> Array | float:
        first = iteration % SHIFTS * _PAGE
        if self._operation == "copy":
            return self._numbers.at(first + places)
        if self._operation == "read":
            return self._numbers.sum(first, first + self._count)
        if self._operation == "write":
            return places * 0 + _written(iteration)
        return self._numbers.at(places) * (-1 if iteration % 2 == 0 else 1)


def _work(operation: str, sources: list[torch.Tensor], result: torch.Tensor) -> Callable[[int], object]:
    """Return a call that does the work of an iteration of this number."""
    if operation == "copy":
        return lambda iteration: result.copy_(sources[iteration % SHIFTS])
    if operation == "read":
        return lambda iteration: torch.sum(sources[iteration % SHIFTS], 0, out=result)
    if operation == "write":
        return lambda iteration: result.fill_(_written(iteration))
    return lambda _: result.neg_()


def _written(iteration: int) -> float:
    return iteration % SHIFTS + 0.5


def _check_memory(parts: list[torch.Tensor]) -> None:
    """Raise an error if parts of the allocated memory are the same memory: write all of them, then read places."""
    for value, part in enumerate(parts):
        part.fill_(value)
    for value, part in enumerate(parts):
        places = [below(len(part)) for _ in range(_PLACES)]
        if wrong := {part[place].item() for place in places} - {value}:
            raise RuntimeError(
                f"capacity: part {value + 1} of {len(parts)} of the memory, of {len(part)} bytes, was overwritten: got"
                f" {wrong.pop()}; expected {value}"
            )


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
