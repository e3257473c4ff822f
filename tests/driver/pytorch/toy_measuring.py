"""A toy of a measurement: a matrix product whose result all ranks exchange."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

import torch
from torch import distributed as dist

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch.measuring import main


class Toy(Measurement):
    together = True

    def __init__(self, ctx: Context) -> None:
        self._size = ctx.config.size

    def points(self) -> list[Point]:
        return [Point(f"fp32 {size}", {"size": size}, "fp32") for size in (self._size, 100_000)]

    def work(self, point: Point) -> dict[str, float]:
        return {"matmul": 2.0 * point.values["size"] ** 3}

    def prepare(self, point: Point) -> None:
        size = point.values["size"]
        self._left, self._right = torch.randn(size, size), torch.randn(size, size)
        self._out = torch.empty(size, size)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            torch.mm(self._left, self._right, out=self._out)
            dist.all_reduce(self._out, dist.ReduceOp.MAX)

    def release(self) -> None:
        del self._left, self._right, self._out


if __name__ == "__main__":
    main(Toy)
