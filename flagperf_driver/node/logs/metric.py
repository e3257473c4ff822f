"""The metric of a suite with its targets, by which logs are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class StoredMetric:
    """The metric of the suite with its target, as the plan has it."""

    name: str
    direction: str = ""
    unit: str = ""
    target: float | None = None
    also: Mapping[str, float] = field(default_factory=dict)
    """Further metrics with their targets."""
    range: tuple[float, ...] | None = None
    loss_range: tuple[float, ...] | None = None
    original_name: str = ""


@dataclass(frozen=True)
class Target:
    """The target of the plan's suite with its further targets; never taken from a log."""

    name: str
    direction: str
    unit: str
    value: float | None
    also: Mapping[str, float] = field(default_factory=dict)
    """Further metrics with their targets; direction and unit are the same."""

    @classmethod
    def of(cls, metric: StoredMetric) -> Target:
        return cls(metric.name, metric.direction, metric.unit, metric.target, metric.also)

    @property
    def sign(self) -> str:
        return "<=" if self.direction == "lower" else ">="

    @property
    def values(self) -> Mapping[str, float | None]:
        """All targets by the names of their metrics."""
        return {self.name: self.value, **self.also}

    def reached_by(self, metrics: Mapping[str, float]) -> bool:
        """Return True if one evaluation's metrics reach all targets."""
        return not self.missed_by(metrics)

    def missed_by(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the names of the metrics that do not reach their targets."""
        return [name for name in self.values if not self.met(name, metrics.get(name))]

    def met(self, name: str, value: float | None) -> bool:
        """Return True if a value of this metric reaches its target."""
        target = self.values[name]
        if value is None or target is None or not (math.isfinite(value) and math.isfinite(target)):
            return False
        if self.direction == "higher":
            return value >= target
        return self.direction == "lower" and value <= target

    def better(self, value: float, than: float) -> bool:
        if math.isnan(than) or not math.isfinite(value):
            return math.isfinite(value)
        return value < than if self.direction == "lower" else value > than
