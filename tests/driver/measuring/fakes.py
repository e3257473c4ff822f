"""Devices with a known truth and a clock of their own: seconds of measuring take milliseconds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from flagperf_driver.measuring.loop import Loop, Measured, PointLimits
from flagperf_driver.measuring.measurement import Measurement, Point

BASE = 2.5e-3
"""The time of an iteration of an undisturbed device."""


class FakeDevice(Measurement):
    """An asynchronous device that works from one mark to the next; it is its own measurement and its own marks."""

    name = "fake events"

    def __init__(self, iteration: Callable[[FakeDevice], float], seed: int, *points: Point) -> None:
        self.at = 0.0
        self.random = random.Random(seed)
        self.disturbed = False
        self.changes_at = math.nan
        self._iteration = iteration
        self._points = points or (Point("fake"),)

    def points(self) -> Iterable[Point]:
        return self._points

    def work(self, point: Point) -> Mapping[str, float]:
        return {"rate": 1.0}

    def prepare(self, point: Point) -> None: ...

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.at += self._iteration(self)

    def mark(self) -> float:
        self.at += 1e-6
        return round(self.at, 7)  # the resolution of a GPU's events is about 0.5 us

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [after - before for before, after in pairwise(marks)]

    def now(self) -> float:
        return self.at

    def noise(self, share: float) -> float:
        return max(0.2, self.random.gauss(1, share))

    def disturbance(self, free_s: float, disturbed_s: float) -> bool:
        """Return True while another job runs, which comes and goes at random with these mean times."""
        mean = (free_s, disturbed_s)
        if math.isnan(self.changes_at):
            self.disturbed = self.random.random() < disturbed_s / (free_s + disturbed_s)
            self.changes_at = self.at + self.random.expovariate(1 / mean[self.disturbed])
        while self.at >= self.changes_at:
            self.disturbed = not self.disturbed
            self.changes_at += self.random.expovariate(1 / mean[self.disturbed])
        return self.disturbed


def constant(device: FakeDevice) -> float:
    return BASE * device.noise(0.001)


def noisy(device: FakeDevice) -> float:
    """Every iteration differs by 12 %."""
    return BASE * device.noise(0.12)


def stalling(device: FakeDevice) -> float:
    """Stopped for 4 ms in one of 20 iterations."""
    return BASE * device.noise(0.003) + (4e-3 if device.random.random() < 0.05 else 0.0)


def with_neighbour(device: FakeDevice) -> float:
    """Slower by 40 % for about 0.2 s in every 0.8 s: longer than many windows."""
    return BASE * device.noise(0.01) * (1.4 if device.disturbance(0.6, 0.2) else 1.0)


def two_clocks(device: FakeDevice) -> float:
    """10 % slower half of the time, for about 50 ms each."""
    return BASE * device.noise(0.003) * (1.1 if device.disturbance(0.05, 0.05) else 1.0)


def warming(device: FakeDevice) -> float:
    """Twice as slow at first."""
    return BASE * device.noise(0.003) * (1 + math.exp(-device.at / 0.1))


def sinking(device: FakeDevice) -> float:
    """Slower by 10 % after 3 s, linearly."""
    return BASE * device.noise(0.003) * (1 + 0.1 * min(1.0, device.at / 3))


def throttled_late(device: FakeDevice) -> float:
    """Slower by 15 % after 1.5 s, as at a power limit."""
    return BASE * device.noise(0.003) * (1.15 if device.at > 1.5 else 1.0)


def measure(device: FakeDevice, limits: PointLimits | None = None, **more: Any) -> Measured:
    (result,) = Loop(device, device, limits or PointLimits(), now=device.now, **more).measure()
    assert isinstance(result, Measured)
    return result
