"""Collective operations over sizes, and the bandwidth and latency between each pair of ranks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import bandwidth
import torch
from torch import distributed as dist

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context

_BYTES = 4
"""Of a number: all data are fp32."""
_IN_PROPORTION = 1 << 20
"""From this size on, the time of an operation is at most in proportion to the size; of less, the latency is most."""


class Interconnect(Measurement):
    """All ranks exchange data of one size; then one pair of ranks after the other, while the other ranks wait."""

    together = True

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._config = ctx, ctx.config
        self._rank, self._ranks, self._of_host = ctx.rank, ctx.world_size, ctx.local_world_size
        unknown = [name for name in self._config.operations if name not in OPERATIONS]
        if unknown:
            raise ValueError(f"operations: unknown operation {unknown[0]!r}; choose from {', '.join(OPERATIONS)}")
        unit = _BYTES * self._ranks
        self._sizes = sorted({max(unit, size // unit * unit) for size in self._config.sizes})
        self._run: Callable[[int], None] = lambda _: None

    def points(self) -> Iterator[Point]:
        for operation, size in itertools.product(self._config.operations, self._sizes):
            series = operation if size >= _IN_PROPORTION else ""
            yield Point(f"{operation} {size}", {"operation": operation, "bytes": size}, series=series)
        sizes = {"pair_latency": self._sizes[0], "pair": self._config.pair_bytes // _BYTES * _BYTES}
        for (operation, size), (source, target) in itertools.product(sizes.items(), self._pairs()):
            if operation == "pair" or source < target:
                values = {"operation": operation, "source": source, "target": target, "bytes": size}
                yield Point(f"{operation} {source}->{target}", values, seconds=self._config.pair_s)

    def _pairs(self) -> list[tuple[int, int]]:
        """Return each pair in both directions; of many ranks only those that are the first ones of their hosts."""
        first_ones = sorted(range(self._ranks), key=lambda rank: (rank % self._of_host, rank))
        return list(itertools.permutations(sorted(first_ones[: self._config.pair_ranks]), 2))

    def work(self, point: Point) -> Mapping[str, float]:
        operation, size = point.values["operation"], float(point.values["bytes"])
        if operation in OPERATIONS:
            return {operation: bandwidth.bus_bytes(operation, size, self._ranks)}
        return {operation: size}

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        operation, size = point.values["operation"], point.values["bytes"]
        if operation == "pair_latency":
            return {operation: seconds / 2}
        figures = dict(super().figures(point, seconds))
        if operation == "pair":
            source, target = point.values["source"], point.values["target"]
            figures.update(bandwidth.flagperf_pair(size / seconds, source, target, self._of_host))
        if operation == "all_reduce":
            figures["all_reduce_algorithm"] = size / seconds
            if size == self._sizes[0]:
                figures["all_reduce_latency"] = seconds
            figures.update(bandwidth.flagperf_all_reduce(size / seconds, self._ranks, self._of_host))
        return figures

    def prepare(self, point: Point) -> None:
        operation, numbers = point.values["operation"], point.values["bytes"] // _BYTES
        if operation in OPERATIONS:
            self._run = self._collective(operation, numbers)
        else:
            self._run = self._exchange(operation, point.values["source"], point.values["target"], numbers)
        # The first call of an operation connects the ranks.
        self._run(1)

    def run(self, iterations: int) -> None:
        self._run(iterations)

    def release(self) -> None:
        self._run = lambda _: None

    def _collective(self, operation: str, numbers: int) -> Callable[[int], None]:
        whole = torch.empty(numbers, device=self._ctx.device)
        part = torch.empty(numbers // self._ranks, device=self._ctx.device)
        call, given, result = collective(operation, whole, part)
        given.fill_(self._rank + 1)
        call()
        check(operation, result, self._rank, self._ranks)
        # Sums of sums become infinite, as in nccl-tests; the time of an addition does not depend on the number.
        given.uniform_()

        def run(iterations: int) -> None:
            for _ in range(iterations):
                call()

        return run

    def _exchange(self, operation: str, source: int, target: int, numbers: int) -> Callable[[int], None]:
        """Return what this rank does for a pair: with ``pair_latency`` the target answers each message."""
        if self._rank not in (source, target):
            return lambda _: None
        data = torch.rand(numbers, device=self._ctx.device)
        answers = operation == "pair_latency"
        answer = torch.zeros_like(data) if answers else torch.zeros(1, device=self._ctx.device)

        def run(iterations: int) -> None:
            # A sender's calls return before the data have arrived: a stream of messages has an answer too.
            turns, messages = (iterations, 1) if answers else (1, iterations)
            for _ in range(turns):
                for _ in range(messages):
                    if self._rank == source:
                        dist.send(data, target)
                    else:
                        dist.recv(data, source)
                if self._rank == source:
                    dist.recv(answer, target)
                else:
                    dist.send(answer, source)

        return run


# -- collective operations -----------------------------------------------------------------------------------


OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def collective(
    operation: str, whole: torch.Tensor, part: torch.Tensor
) -> tuple[Callable[[], object], torch.Tensor, torch.Tensor]:
    """Return a call, its input and its output, from a tensor of the whole size and one of a rank's part."""
    if operation == "all_gather":
        return functools.partial(dist.all_gather_into_tensor, whole, part), part, whole
    if operation == "reduce_scatter":
        return functools.partial(dist.reduce_scatter_tensor, part, whole), whole, part
    if operation == "all_to_all":
        result = torch.empty_like(whole)
        return functools.partial(dist.all_to_all_single, result, whole), whole, result
    if operation == "broadcast":
        return functools.partial(dist.broadcast, whole, 0), whole, whole
    return functools.partial(dist.all_reduce, whole), whole, whole


def check(operation: str, result: torch.Tensor, rank: int, ranks: int) -> None:
    """Raise an error if a rank's result is wrong, where each rank's input was its number, counted from 1."""
    every = {"all_reduce": ranks * (ranks + 1) / 2, "reduce_scatter": ranks * (ranks + 1) / 2, "broadcast": 1.0}
    expected = [every[operation]] if operation in every else [source + 1.0 for source in range(ranks)]
    for place, value in enumerate(expected):
        part = result.view(len(expected), -1)[place]
        low, high = part.min().item(), part.max().item()
        if (low, high) != (value, value):
            raise RuntimeError(
                f"rank {rank}: wrong result of {operation} with {ranks} ranks: part {place + 1} of {len(expected)} has"
                f" values from {low:g} to {high:g}; expected {value:g}"
            )
