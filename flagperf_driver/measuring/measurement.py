"""What a suite that measures a machine must offer to the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping


@dataclass(frozen=True)
class Point:
    """One combination of what a measurement varies: sizes, data types, pairs of devices."""

    name: str
    """Unique in the measurement, e.g. "fp32 1024"."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What varies, e.g. ``{"precision": "fp32", "size": 1024}``."""
    series: str = ""
    """Points of one series do the same work in growing sizes, the smallest first. The loop predicts the time of a
    point from the one before, and leaves out a point that would take too long."""
    seconds: float | None = None
    """Measure for this time, after the warm-up; None: until the interval is narrow enough.

    The figures of a fixed time are those of the mean of its iterations, the others those of the median."""


class Measurement(ABC):
    """One rank's side of a measurement; the loop calls it, on every rank for the same points."""

    together: bool = False
    """True if all ranks work together in an iteration, so that the time of the slowest rank counts."""

    on_host: bool = False
    """True if the device has no part in an iteration, so that the host's clock measures it."""

    @abstractmethod
    def points(self) -> Iterable[Point]:
        """Return the points, which must be the same on every rank."""

    @abstractmethod
    def work(self, point: Point) -> Mapping[str, float]:
        """Return the work of one iteration by figure, also before ``prepare``; without work, nothing is timed."""

    @abstractmethod
    def prepare(self, point: Point) -> None:
        """Allocate and fill what ``run`` needs."""

    @abstractmethod
    def run(self, iterations: int) -> None:
        """Submit the work of so many iterations to the device; wait for nothing."""

    def check(self, point: Point) -> None:  # noqa: B027 - a new suite may have none
        """Raise an error if the work of a point was not done; called after its last iteration, which is not timed."""

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        """Return the figures of a point in base units, from the time of one iteration; NaN if nothing was timed."""
        return {name: units / seconds for name, units in self.work(point).items()}

    def facts(self) -> Mapping[str, Any]:
        """Return what else belongs to the point in the log; called after its last iteration."""
        return {}

    def release(self) -> None:  # noqa: B027 - many measurements have nothing to free
        """Free what ``prepare`` allocated."""
