"""How many random numbers a device sorts per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context


class Sorting(Measurement):
    """``torch.sort`` of one vector."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._numbers = torch.empty(0)

    def points(self) -> Iterator[Point]:
        for size in self._ctx.config.sizes:
            yield Point(f"sort {size}", {"numbers": size}, series="sort")

    def work(self, point: Point) -> Mapping[str, float]:
        return {"sort": float(point.values["numbers"])}

    def prepare(self, point: Point) -> None:
        generator = torch.Generator(self._ctx.device).manual_seed(self._ctx.seed)
        self._numbers = torch.rand(point.values["numbers"], device=self._ctx.device, generator=generator)

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            torch.sort(self._numbers)

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        figures = dict(super().figures(point, seconds))
        if point.values["numbers"] == min(self._ctx.config.sizes):
            figures["sort_latency"] = seconds
        return figures

    def release(self) -> None:
        self._numbers = torch.empty(0)
