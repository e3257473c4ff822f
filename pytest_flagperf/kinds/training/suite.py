"""A suite.toml of a training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from flagperf_driver.training.parallel import OF_SUITE
from pytest_flagperf.catalog.suite import COUNTED_ON, DIRECTIONS, KINDS, DataItem, Goal, MetricTable, SuiteFigure
from pytest_flagperf.catalog.toml_reader import choice, where
from pytest_flagperf.problems import near
from pytest_flagperf.stored.plan import TRAINING, LeftOutTimeLimits


@dataclass(frozen=True)
class TrainingScale:
    target: float
    """The value of the metric that a training must reach."""
    also: Mapping[str, float] = field(default_factory=dict)
    """Further metrics with their targets, which the same evaluation must reach."""
    flops_per_sample: float | None = None
    """FLOPs of training one sample: three times the forward pass; needed for MFU."""
    counted_on: str = COUNTED_ON[0]
    """The device on which the tests count flops_per_sample: cpu if shapes depend on values."""
    data: tuple[DataItem, ...] = ()
    """Required files and folders of the data directory."""
    left_out: LeftOutTimeLimits = LeftOutTimeLimits()  # noqa: RUF009 - frozen
    """The most that p_core may leave out of the training's time."""


@dataclass(frozen=True)
class TrainingTable:
    sample_unit: str
    """What is counted, such as images."""
    metric: MetricTable
    """The metric that is judged."""
    scales: Mapping[str, TrainingScale]
    """One table for each scale: reference and small."""
    common: tuple[str, ...] = ()
    """The folders of suites/common that the suite uses."""
    memory: str | None = None
    """The folder of suites/common whose memory.py estimates the memory of a rank; ``.`` is the suite's own folder."""
    goal: Goal | None = None
    """The rate that one device should reach at the reference scale."""
    parallel: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further axes of the config's ``parallel`` that the suite supports, with the keys that their sizes must divide."""
    kind: str = TRAINING
    """training or measurement."""
    figures: ClassVar[Mapping[str, SuiteFigure]] = {}
    least_ranks: ClassVar[int] = 1
    case_key: ClassVar[str] = ""

    def problems(self, file: Path) -> Iterator[str]:
        yield from choice(file, "metric.direction", self.metric.direction, DIRECTIONS)
        for axis in sorted(self.parallel.keys() - {*OF_SUITE}):
            at = where(file, "parallel", axis)
            yield f"{at}: parallel.{axis}: unknown axis; allowed: {', '.join(OF_SUITE)}{near(axis, list(OF_SUITE))}"
        yield from _ranges(file, self)
        if self.goal and not (self.goal.rate > 0 and self.goal.batch > 0):
            got = f"{self.goal.rate:g} and {self.goal.batch:g}"
            yield f"{where(file, 'goal')}: goal.rate and goal.batch are {got}; expected more than 0"
        if self.goal and self.goal.min_goodput is not None and not 0 < self.goal.min_goodput <= 1:
            got = f"goal.min_goodput is {self.goal.min_goodput:g}"
            yield f"{where(file, 'goal')}: {got}; expected a share, more than 0 and at most 1"
        for name, scale in self.scales.items():
            yield from choice(file, f"scales.{name}.counted_on", scale.counted_on, COUNTED_ON)
            yield from _left_out(file, name, scale.left_out)
            for item in scale.data:
                yield from choice(file, f"scales.{name}.data: kind of {item.path}", item.kind, KINDS)


def _left_out(file: Path, scale: str, left_out: LeftOutTimeLimits) -> Iterator[str]:
    for key, value in vars(left_out).items():
        highest, expected = (math.inf, "0 or more") if key == "evaluation" else (1, "0 to 1, a share of the time")
        if not 0 <= value <= highest:
            at = where(file, "scales", scale, "left_out", key)
            yield f"{at}: scales.{scale}.left_out.{key} is {value:g}; expected {expected}"


def _ranges(file: Path, table: TrainingTable) -> Iterator[str]:
    metric = table.metric
    for key, pair in (("range", metric.range), ("loss_range", metric.loss_range)):
        if pair is not None and (len(pair) != 2 or not pair[0] < pair[1]):
            expected = "expected the lowest and the highest possible value, as in [0, 1]"
            yield f"{where(file, 'metric', key)}: metric.{key} is {[*pair]}; {expected}"
            return
    low, high = metric.range
    for name, scale in table.scales.items():
        targets = {"target": scale.target, **{f"also.{further}": target for further, target in scale.also.items()}}
        for key, target in targets.items():
            if not low <= target <= high:
                at = where(file, "scales", name, *key.split(".", 1))
                yield f"{at}: scales.{name}.{key} is {target:g}; expected {low:g} to {high:g}, the metric's range"
        for further in scale.also.keys() & {metric.name, metric.original_name}:
            at = where(file, "scales", name, "also", further)
            yield f"{at}: scales.{name}.also has {further!r}, the metric itself; set scales.{name}.target"
