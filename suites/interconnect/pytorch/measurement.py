"""Collective operations over sizes, and the bandwidth and latency between each pair of ranks; the data are checked."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping

import bandwidth
import numpy as np
import torch
from common.measuring.answers import SHIFTS, Array, Numbers, Samples
from torch import distributed as dist

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_BYTES = 4
"""Of a number: all data are fp32."""
_IN_PROPORTION = 1 << 20
"""From this size on, the time of an operation is at most in proportion to the size; of less, the latency is most."""
_BLOCK = 8191
"""The numbers of a rank, over and over: every rank knows those of all ranks."""
_LARGEST = 8
_PAGE = 1024
"""The numbers that a rank gives in an iteration begin so many later than in the one before."""
_ALLOWED = 1e-4
"""The largest error of sums, as a share: their order is free. All else must be equal."""


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
        self._exchange: Exchange | None = None

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
            self._exchange = Collective(self._ctx, operation, numbers)
        else:
            pair = point.values["source"], point.values["target"]
            self._exchange = Pair(self._ctx, *pair, numbers, answers=operation == "pair_latency")
        # The first call of an operation connects the ranks.
        self.run(1)

    def run(self, iterations: int) -> None:
        assert self._exchange is not None
        self._exchange.run(iterations)

    def check(self, point: Point) -> None:
        assert self._exchange is not None
        self._exchange.check(f"rank {self._rank}: {point.name}")

    def release(self) -> None:
        self._exchange = None


class Exchange:
    """What this rank gives and gets; subclasses say what is expected."""

    def __init__(self, ctx: Context, numbers: int) -> None:
        self._ctx, self._rank, self._ranks = ctx, ctx.rank, ctx.world_size
        self._of = functools.cache(lambda rank: Numbers([ctx.seed, rank], torch.float32, length=_BLOCK, whole=_LARGEST))
        self._numbers = numbers
        self._samples = Samples(ctx.device)

    def _given(self, numbers: int) -> list[torch.Tensor]:
        """Return what this rank gives, by the number of the iteration modulo SHIFTS."""
        array = torch.empty(numbers + (SHIFTS - 1) * _PAGE, device=self._ctx.device)
        self._of(self._rank).fill(array)
        return [array[shift * _PAGE :][:numbers] for shift in range(SHIFTS)]

    def _from(self, rank: int, iteration: int, places: Array) -> Array:
        return self._of(rank).at(places + iteration % SHIFTS * _PAGE)

    def run(self, iterations: int) -> None:
        raise NotImplementedError

    def check(self, work: str) -> None:
        raise NotImplementedError


class Collective(Exchange):
    """A collective operation, whose input differs by iteration.

    An all-reduce and a broadcast write into their input. An all-reduce of its own result multiplies the result by the
    number of ranks; it begins again from the input before a number becomes infinite.
    """

    def __init__(self, ctx: Context, operation: str, numbers: int) -> None:
        super().__init__(ctx, numbers)
        self._operation, self._part = operation, numbers // self._ranks
        parts, whole = operation == "all_gather", operation == "all_reduce"
        self._inputs = self._given(self._part if parts else numbers)
        self._period = max(1, int(123 / math.log2(self._ranks))) if whole and self._ranks > 1 else 1
        self._result = torch.zeros(self._part if operation == "reduce_scatter" else numbers, device=ctx.device)
        calls = {
            "all_gather": lambda given: dist.all_gather_into_tensor(self._result, given),
            "reduce_scatter": lambda given: dist.reduce_scatter_tensor(self._result, given),
            "all_to_all": lambda given: dist.all_to_all_single(self._result, given),
            "broadcast": lambda given: dist.broadcast(given if self._rank == 0 else self._result, 0),
            "all_reduce": lambda _: dist.all_reduce(self._result),
        }
        self._call = calls[operation]

    def run(self, iterations: int) -> None:
        samples, result = self._samples, self._result
        sums, sender = self._operation == "all_reduce", self._operation == "broadcast" and self._rank == 0
        for _ in range(iterations):
            given = self._inputs[samples.iteration // self._period % SHIFTS]
            if sums and samples.iteration % self._period == 0:
                result.copy_(given)
            self._call(given)
            samples.after(given if sender else result, len(result))

    def check(self, work: str) -> None:
        sums = self._operation in ("all_reduce", "reduce_scatter")
        self._samples.check(work, self._expected, _ALLOWED if sums else 0.0)

    def _expected(self, iteration: int, places: Array) -> Array:
        turn, repeated = divmod(iteration, self._period)
        if self._operation == "broadcast":
            return self._from(0, turn, places)
        if self._operation in ("all_reduce", "reduce_scatter"):
            begin = self._rank * self._part if self._operation == "reduce_scatter" else 0
            total: Array = sum(self._from(rank, turn, begin + places) for rank in range(self._ranks))
            return total * float(self._ranks) ** repeated
        sources, within = np.divmod(places, self._part)
        if self._operation == "all_to_all":
            within += self._rank * self._part
        got = [self._from(int(source), turn, place) for source, place in zip(sources, within, strict=True)]
        return np.array(got)


class Pair(Exchange):
    """A rank sends to another one; with ``answers`` the target answers each message, else a stream of them."""

    def __init__(self, ctx: Context, source: int, target: int, numbers: int, *, answers: bool) -> None:
        super().__init__(ctx, numbers)
        self._source, self._target, self._answers = source, target, answers
        self._inputs = self._given(numbers) if self._rank in (source, target) else []
        self._data = torch.zeros(numbers, device=ctx.device)
        self._end = torch.zeros(1, device=ctx.device)
        self._turn = 0

    def run(self, iterations: int) -> None:
        if self._inputs:
            for _ in range(iterations):
                self._message(self._source, self._target)
                if self._answers:
                    self._message(self._target, self._source)
                self._turn += 1
            if not self._answers:
                # A sender's calls return before the data have arrived: a stream of messages has an answer too.
                if self._rank == self._target:
                    dist.send(self._end, self._source)
                else:
                    dist.recv(self._end, self._target)

    def _message(self, source: int, target: int) -> None:
        if self._rank == source:
            dist.send(self._inputs[self._turn % SHIFTS], target)
        else:
            dist.recv(self._data, source)
            self._samples.after(self._data, self._numbers)

    def check(self, work: str) -> None:
        other = self._source + self._target - self._rank
        self._samples.check(work, lambda iteration, places: self._from(other, iteration, places))
