"""A suite and its suite.toml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from flagperf_driver.target import Target

from ..kind import kind_of, kinds
from ..problems import near
from ..stored.plan import BEST, TRAINING, LeftOutTimeLimits
from .toml_reader import CatalogError, choice, raise_if_any, read, read_key, where

DIRECTIONS = ("higher", "lower")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8")
BANDWIDTHS = ("memory_gb_s", "host_gb_s", "link_gb_s")
"""The keys of a chip's peaks beside peak_tflops."""
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
    min_goodput: float | None = None
    """The least goodput of a training with --restarts or --drill, if --min-goodput is not given."""


@dataclass(frozen=True)
class MetricTable:
    """The metric of a suite.toml."""

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


class SuiteTable(Protocol):
    """A suite.toml; each kind of suites has its own."""

    @property
    def kind(self) -> str: ...
    @property
    def metric(self) -> MetricTable: ...
    @property
    def figures(self) -> Mapping[str, SuiteFigure]: ...
    @property
    def scales(self) -> Mapping[str, Any]:
        """The tables of the scales; their keys are among those of Scale."""

    @property
    def sample_unit(self) -> str: ...
    @property
    def goal(self) -> Goal | None: ...
    @property
    def common(self) -> tuple[str, ...]: ...
    @property
    def memory(self) -> str | None: ...
    @property
    def parallel(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def least_ranks(self) -> int: ...
    @property
    def case_key(self) -> str: ...
    def problems(self, file: Path) -> Iterator[str]:
        """Yield what the types allow and a suite.toml does not."""


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

    @cached_property
    def kind(self) -> str:
        """The kind of the suite, such as training or measurement."""
        file = self.path / "suite.toml"
        kind = read_key(file, "kind", TRAINING)
        raise_if_any(choice(file, "kind", kind, tuple(kinds())))
        return kind

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
        return kind_of(self).needs_config and scale == REFERENCE

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
    def case_key(self) -> str:
        """The config key that names a case of another suite; empty without one."""
        return self._table.case_key

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
    def _table(self) -> SuiteTable:
        file = self.path / "suite.toml"
        table: SuiteTable = read(kind_of(self).table, file)
        problems = [*table.problems(file)]
        for name in sorted(table.scales.keys() - {*SCALES}):
            at = where(file, "scales", name)
            problems.append(f"{at}: [scales.{name}]: allowed: {', '.join(SCALES)}{near(name, list(SCALES))}")
        for name in table.common:
            known = sorted(path.parent.name for path in self._common_folder.glob("*/__init__.py"))
            problems += choice(file, "common", name, tuple(known))
        if table.memory is not None:
            able = [name for name in (*table.common, OWN) if self._program(name).is_file()]
            problems += choice(file, "memory", table.memory, tuple(able))
        raise_if_any(problems)
        return table


def framework_of(suite: Suite, name: str = "") -> str:
    """Return the framework whose devices and environment a suite uses; ``name`` is that of a case, with its version."""
    return kind_of(suite).framework or name or suite.framework
