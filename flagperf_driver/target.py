"""The target of a suite, on both sides: a rank stops at it, and the logs are judged by it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class Target:
    """The metric of a suite with the value that a training must reach; never taken from a log."""

    name: str
    direction: str
    unit: str
    value: float | None = None
    """None in a measurement."""
    also: Mapping[str, float] = field(default_factory=dict)
    """Further metrics with their targets, which have the same direction, unit and range."""
    range: tuple[float, ...] | None = field(default=None, compare=False)
    loss_range: tuple[float, ...] | None = field(default=None, compare=False)
    original_name: str = field(default="", compare=False)
    """Logs are read by this and the two ranges, as suite.toml has them; an outcome does not store them."""

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
        """Return True if a value of this metric reaches its target; NaN and the infinities reach none."""
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
