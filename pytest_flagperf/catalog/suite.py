"""A suite and its suite.toml."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from flagperf_driver.target import Target
from flagperf_driver.training.parallel import OF_SUITE

from ..problems import near
from ..stored.plan import BEST, LAST, MEASUREMENT, TRAINING, WORST, LeftOutTimeLimits
from .toml_reader import CatalogError, choice, raise_if_any, read, read_key, where

DIRECTIONS = ("higher", "lower")
UNITS = ("B/s", "FLOP/s", "OP/s", "1/s", "s", "bytes", "share", "x")
"""The units of a measurement's figures, which reports scale."""
PICKS = (BEST, WORST, LAST)
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
BANDWIDTHS = ("memory_gb_s", "host_gb_s", "link_gb_s")
"""The keys of a chip's peaks beside peak_tflops."""
_PEAKS = (*BANDWIDTHS, *(f"peak_tflops.{precision}" for precision in PRECISIONS))
FIGURE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
KINDS = ("file", "folder")
MEMORY = "memory.py"
"""The program that estimates the memory of a rank."""
OWN = "."
"""The suite's own folder, where the name of a folder of suites/common is expected."""
COUNTED_ON = ("meta", "cpu")
"""Devices on which the tests count a forward pass; on meta, tensors have no values."""
REFERENCE = "reference"
"""The scale of the full model; vendors tune only this scale."""
SCALES = (REFERENCE, "small")


@dataclass(frozen=True)
class SuiteFigure:
    unit: str
    """The unit in the log, such as B/s or FLOP/s."""
    direction: str
    """The better direction."""
    about: str
    """The meaning in a sentence."""
    peak: str | None = None
    """The chip's key in vendor.toml that bounds the figure, such as memory_gb_s or peak_tflops.bf16."""
    over: str = ""
    """The name of the value that varies between the points of a curve."""
    pick: str = BEST
    """Which point is the case's figure: the best, the worst, or the last, with the largest value of ``over``."""
    original: str = ""
    """The case of FlagPerf's base that measures the same or, with its own formula, the same times."""
    optional: bool = False
    """The figure may be missing where the chip declares no peak of it."""
    at_least: float | None = None
    """The least value of a valid measurement, whatever the chip."""
    variation: float = 0.1
    """The largest share by which rounds, and a point's own windows, may vary."""


@dataclass(frozen=True)
class RankRequirements:
    """What a suite needs of the ranks of a case."""

    least: int = 1
    """The fewest processes."""
    parallel: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The axes that not every suite supports, and the config keys that the size of each must divide."""
    memory: Path | None = None
    """The program that estimates the memory of a rank."""


@dataclass(frozen=True)
class DataItem:
    """A required file or folder in the data directory."""

    path: str
    """The path in the data directory."""
    kind: str = "file"
    """A file or a folder."""
    files: int | None = None
    """Number of files in the folder."""
    folders: int | None = None
    """Number of folders in the folder."""
    size: int | None = None
    """Size of the file in bytes."""
    sha256: str | None = None
    """Checksum of the file."""
    md5: str | None = None
    """Checksum of the file, if the source publishes no other."""


@dataclass(frozen=True)
class Scale:
    name: str
    target: Target
    """The metric with the targets of this scale; a measurement has none."""
    flops_per_sample: float | None = None
    counted_on: str = COUNTED_ON[0]
    """The device on which the tests count flops_per_sample: cpu if shapes depend on values."""
    data: tuple[DataItem, ...] = ()
    left_out: LeftOutTimeLimits | None = None
    data_dir: bool = False
    """Whether a measurement uses the data directory, if it is given."""
    preflight: tuple[str, ...] = ()
    """Settings of a short measurement of all devices before a run, as with --set; empty: the suite takes no part."""


@dataclass(frozen=True)
class Goal:
    """The rate that one device should reach at the reference scale."""

    chip: str
    """The chip of this rate."""
    rate: float
    """Samples per second, in the suite's sample unit."""
    batch: float
    """Samples of a step at this rate."""
    source: str
    """Where the rate comes from."""


@dataclass(frozen=True)
class _MetricTable:
    name: str
    """The key that summarize() returns."""
    direction: str
    """The better direction."""
    unit: str
    """The unit; ``fraction`` for values between 0 and 1."""
    range: tuple[float, ...]
    """The lowest and the highest possible value of the metric."""
    loss_range: tuple[float, ...] | None = None
    """The lowest and the highest possible training loss; None: any value from 0."""
    original_name: str = ""
    """The name of the metric in FlagPerf's logs, if different."""


@dataclass(frozen=True)
class _ScaleTable:
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
class _SuiteTable:
    sample_unit: str
    """What is counted, such as images."""
    metric: _MetricTable
    """The metric that is judged."""
    scales: Mapping[str, _ScaleTable]
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

    def problems(self, file: Path) -> Iterator[str]:
        yield from choice(file, "metric.direction", self.metric.direction, DIRECTIONS)
        for axis in sorted(self.parallel.keys() - {*OF_SUITE}):
            at = where(file, "parallel", axis)
            yield f"{at}: parallel.{axis}: unknown axis; allowed: {', '.join(OF_SUITE)}{near(axis, list(OF_SUITE))}"
        yield from _ranges(file, self)
        if self.goal and not (self.goal.rate > 0 and self.goal.batch > 0):
            got = f"{self.goal.rate:g} and {self.goal.batch:g}"
            yield f"{where(file, 'goal')}: goal.rate and goal.batch are {got}; expected more than 0"
        for name, scale in self.scales.items():
            yield from choice(file, f"scales.{name}.counted_on", scale.counted_on, COUNTED_ON)
            yield from _left_out(file, name, scale.left_out)
            for item in scale.data:
                yield from choice(file, f"scales.{name}.data: kind of {item.path}", item.kind, KINDS)


@dataclass(frozen=True)
class _MeasurementScale:
    data_dir: bool = False
    """Whether the suite uses the data directory, if it is given."""
    preflight: tuple[str, ...] = ()
    """Settings of a short measurement of all devices before a run, as with --set; empty: the suite takes no part."""


@dataclass(frozen=True)
class _MeasurementTable:
    """A suite.toml with ``kind = "measurement"``."""

    kind: str
    """measurement."""
    figures: Mapping[str, SuiteFigure]
    """A table for each figure; the first is the suite's metric."""
    scales: Mapping[str, _MeasurementScale]
    """One table for each scale: reference and small."""
    common: tuple[str, ...] = ()
    """The folders of suites/common that the suite uses."""
    least_ranks: int = 1
    """The fewest processes that can measure."""
    memory: ClassVar[None] = None
    sample_unit: ClassVar[str] = ""
    goal: ClassVar[Goal | None] = None
    parallel: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def metric(self) -> _MetricTable:
        name, figure = next(iter(self.figures.items()))
        return _MetricTable(name, figure.direction, figure.unit, ())

    def problems(self, file: Path) -> Iterator[str]:
        if not self.figures:
            yield f"{where(file, 'figures')}: figures: expected at least one, as in [figures.copy_bandwidth]"
        if self.least_ranks < 1:
            yield f"{where(file, 'least_ranks')}: least_ranks is {self.least_ranks}; expected at least 1"
        for name in sorted(self.scales.keys() - {*SCALES}):
            at = where(file, "scales", name)
            yield f"{at}: [scales.{name}]: allowed: {', '.join(SCALES)}{near(name, list(SCALES))}"
        for name, figure in self.figures.items():
            at = f"figures.{name}"
            for key, allowed in (("unit", UNITS), ("direction", DIRECTIONS), ("pick", PICKS)):
                yield from choice(file, f"{at}.{key}", getattr(figure, key), allowed)
            if figure.peak is not None:
                yield from choice(file, f"{at}.peak", figure.peak, _PEAKS)
            if not FIGURE_NAME.fullmatch(name):
                yield f"{where(file, 'figures', name)}: {at}: invalid name; expected letters, digits and _"
            if figure.pick == LAST and not figure.over:
                yield f'{where(file, "figures", name, "pick")}: {at}: pick = "{LAST}" needs over'
            if not 0 < figure.variation <= 1:
                got = f"{at}.variation is {figure.variation:g}"
                yield f"{where(file, 'figures', name, 'variation')}: {got}; expected a share above 0 and at most 1"


_TABLES: Mapping[str, type[_SuiteTable | _MeasurementTable]] = {TRAINING: _SuiteTable, MEASUREMENT: _MeasurementTable}


@dataclass(frozen=True)
class Suite:
    """One model in one framework: a folder with a suite.toml, which is read on first use."""

    model: str
    framework: str
    path: Path
    root: Path

    @property
    def name(self) -> str:
        return f"{self.model}:{self.framework}"

    @property
    def folder(self) -> str:
        """The name of the suite's folder in a vendor's folder."""
        return f"{self.model}-{self.framework}"

    @property
    def kind(self) -> str:
        """Whether the suite is a training or a measurement."""
        return self._table.kind

    @property
    def is_training(self) -> bool:
        return self._table.kind == TRAINING

    @property
    def metric(self) -> Target:
        """The metric that a training is judged by, or the first figure of a measurement, without a target."""
        return Target(**vars(self._table.metric))

    @property
    def figures(self) -> Mapping[str, SuiteFigure]:
        """The figures of a measurement."""
        return self._table.figures

    def reads_data(self, scale: str) -> bool:
        """Return True if cases of a scale use the data directory; a small scale may include its data in the suite."""
        declared = self.scales.get(scale)
        return self.needs_data(scale) or (declared is not None and (bool(declared.data) or declared.data_dir))

    def needs_data(self, scale: str) -> bool:
        """Return True if cases of a scale cannot run without the data directory, or with synthetic data."""
        return self.is_training and scale == REFERENCE

    @property
    def sample_unit(self) -> str:
        return self._table.sample_unit

    @property
    def goal(self) -> Goal | None:
        return self._table.goal

    @property
    def ranks(self) -> RankRequirements:
        """What the suite needs of the ranks of a case."""
        folder = self._table.memory
        return RankRequirements(
            self._table.least_ranks, self._table.parallel, None if folder is None else self._program(folder)
        )

    def _program(self, folder: str) -> Path:
        return (self.path if folder == OWN else self._common_folder / folder) / MEMORY

    @property
    def common(self) -> tuple[str, ...]:
        """The folders of suites/common that the suite uses."""
        return self._table.common

    @property
    def code(self) -> tuple[Path, ...]:
        """The suite's folder, the modules of suites/common that serve all suites, and the folders that it declares."""
        shared = self._common_folder
        return self.path, *sorted(shared.glob("*.py")), *(shared / name for name in self.common)

    @property
    def _common_folder(self) -> Path:
        return self.root / "suites" / "common"

    def reference_file(self, scale: str) -> Path:
        """The file for the reference curves of a scale; it may not exist."""
        return self.path / "reference" / f"{scale}.json"

    def reference(self, scale: str) -> dict[str, Any] | None:
        """Return the stored reference curves, not checked; None if the suite has none."""
        file = self.reference_file(scale)
        if not file.is_file():
            return None
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CatalogError([f"{file}: invalid JSON: {error}; python -m tools.calibrate writes this file"]) from None
        if not isinstance(body, dict):
            raise CatalogError([f"{file}: expected a JSON object; python -m tools.calibrate writes this file"])
        return body

    @cached_property
    def scales(self) -> Mapping[str, Scale]:
        return {name: self._scale(name, dict(vars(table))) for name, table in self._table.scales.items()}

    def _scale(self, name: str, declared: dict[str, Any]) -> Scale:
        target = replace(self.metric, value=declared.pop("target", None), also=declared.pop("also", {}))
        return Scale(name, target, **declared)

    @cached_property
    def _table(self) -> _SuiteTable | _MeasurementTable:
        file = self.path / "suite.toml"
        kind = read_key(file, "kind", TRAINING)
        raise_if_any(choice(file, "kind", kind, tuple(_TABLES)))
        table = read(_TABLES[kind], file)
        problems = [*table.problems(file)]
        for name in table.common:
            known = sorted(path.parent.name for path in self._common_folder.glob("*/__init__.py"))
            problems += choice(file, "common", name, tuple(known))
        if table.memory is not None:
            able = [name for name in (*table.common, OWN) if self._program(name).is_file()]
            problems += choice(file, "memory", table.memory, tuple(able))
        raise_if_any(problems)
        return table


def _left_out(file: Path, scale: str, left_out: LeftOutTimeLimits) -> Iterator[str]:
    for key, value in vars(left_out).items():
        highest, expected = (math.inf, "0 or more") if key == "evaluation" else (1, "0 to 1, a share of the time")
        if not 0 <= value <= highest:
            at = where(file, "scales", scale, "left_out", key)
            yield f"{at}: scales.{scale}.left_out.{key} is {value:g}; expected {expected}"


def _ranges(file: Path, table: _SuiteTable) -> Iterator[str]:
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
