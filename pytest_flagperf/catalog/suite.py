"""One suite: what its suite.toml says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .toml_reader import CatalogError, choice, raise_if_any, read, where

DIRECTIONS = ("higher", "lower")
KINDS = ("file", "folder")
REFERENCE = "reference"
"""The scale of the real model, the only one that a vendor tunes."""
SCALES = (REFERENCE, "small")


@dataclass(frozen=True)
class SuiteMetric:
    name: str
    direction: str
    unit: str
    range: tuple[float, ...]
    """The lowest and the highest value that the metric can have."""
    loss_range: tuple[float, ...] | None = None
    """The same of the training loss; None: 0 and more."""
    original_name: str = ""
    """What the original's logs call the metric, if not the same."""

    def to_json(self) -> dict[str, object]:
        """The fields, with lists for tuples as JSON has them."""
        return {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class DataItem:
    """One line of a manifest: what the data directory must hold."""

    path: str
    kind: str = "file"
    files: int | None = None
    folders: int | None = None
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Scale:
    name: str
    target: float
    flops_per_sample: float | None
    data: tuple[DataItem, ...]


@dataclass(frozen=True)
class _ScaleTable:
    target: float
    flops_per_sample: float | None = None
    data: tuple[DataItem, ...] = ()


@dataclass(frozen=True)
class _SuiteTable:
    sample_unit: str
    metric: SuiteMetric
    scales: Mapping[str, _ScaleTable]


@dataclass(frozen=True)
class Suite:
    """One model in one framework: a folder with a suite.toml, which is read when first asked for."""

    model: str
    framework: str
    path: Path
    root: Path

    @property
    def name(self) -> str:
        return f"{self.model}:{self.framework}"

    @property
    def folder(self) -> str:
        """The name of its folder below a vendor's."""
        return f"{self.model}-{self.framework}"

    @property
    def metric(self) -> SuiteMetric:
        return self._table.metric

    @property
    def sample_unit(self) -> str:
        return self._table.sample_unit

    def reference_file(self, scale: str) -> Path:
        """Where the reference curves of a scale lie, if there are any."""
        return self.path / "reference" / f"{scale}.json"

    def reference(self, scale: str) -> dict[str, Any] | None:
        """The reference curves as they lie there: whoever judges by them reads them."""
        file = self.reference_file(scale)
        if not file.is_file():
            return None
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CatalogError([f"{file}: is not readable JSON: {error}; flagperf reference writes it"]) from None
        if not isinstance(body, dict):
            raise CatalogError([f"{file}: holds no object; flagperf reference writes it"])
        return body

    @cached_property
    def scales(self) -> Mapping[str, Scale]:
        return {
            name: Scale(name, scale.target, scale.flops_per_sample, scale.data)
            for name, scale in self._table.scales.items()
        }

    @cached_property
    def _table(self) -> _SuiteTable:
        file = self.path / "suite.toml"
        table = read(_SuiteTable, file)
        problems = choice(file, "metric.direction", table.metric.direction, DIRECTIONS)
        problems += [*_ranges(file, table)]
        for name, scale in table.scales.items():
            for item in scale.data:
                problems += choice(file, f"scales.{name}.data: kind of {item.path}", item.kind, KINDS)
        raise_if_any(problems)
        return table


def _ranges(file: Path, table: _SuiteTable) -> Iterator[str]:
    metric = table.metric
    for key, pair in (("range", metric.range), ("loss_range", metric.loss_range)):
        if pair is not None and (len(pair) != 2 or not pair[0] < pair[1]):
            expected = "expected the lowest and the highest possible value, as in [0, 1]"
            yield f"{where(file, 'metric', key)}: metric.{key} is {[*pair]}; {expected}"
            return
    low, high = metric.range
    for name, scale in table.scales.items():
        if not low <= scale.target <= high:
            got = f"scales.{name}.target is {scale.target:g}"
            yield f"{where(file, 'scales', name, 'target')}: {got}; expected {low:g} to {high:g}, the metric's range"
