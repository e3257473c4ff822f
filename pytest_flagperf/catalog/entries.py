"""What suite.toml and vendor.toml say."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flagperf_driver.node.environment import RESULT_SETTINGS

from .. import expected as expectations
from ..case import CaseError, Shape
from ..expected import Expected
from ..problems import near
from ..runtime.docker import options as docker_options
from . import images
from .images import VendorImage
from .tables import CatalogError, read, where

LEASES = ("device", "host")
RUNTIMES = ("host", "venv", "docker")
DIRECTIONS = ("higher", "lower")
KINDS = ("file", "folder")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
BEST_EFFICIENCY = 1.5
"""The greatest speed-up per card that anybody may ask for."""
VENDOR_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Of its folder: in there may be modules that a rank imports, and its name is part of other files' names."""
VENDOR_NAME_WANTED = "lowercase letters, digits and _ are allowed, beginning with a letter"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REFERENCE = "reference"
"""The scale of the real model, the only one that a vendor tunes."""
SCALES = (REFERENCE, "small")


@dataclass(frozen=True)
class Metric:
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
class Chip:
    devices_per_host: int | None = None
    memory_gib: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """What the vendor's tool calls it: regular expressions; without any, its key as a word of the name."""


@dataclass(frozen=True)
class Container:
    """How the vendor's containers are started."""

    options: tuple[str, ...] = ()  # words of the docker command line
    shm_size: str | None = None


@dataclass(frozen=True)
class _ScaleTable:
    target: float
    flops_per_sample: float | None = None
    data: tuple[DataItem, ...] = ()


@dataclass(frozen=True)
class _SuiteTable:
    sample_unit: str
    metric: Metric
    scales: Mapping[str, _ScaleTable]


@dataclass(frozen=True)
class _VendorTable:
    name: str
    device: str
    backend: str
    chips: Mapping[str, Chip]
    modules: tuple[str, ...] = ()
    visible_devices: str | None = None
    runtime: str = "venv"
    scale: str = REFERENCE
    shapes: tuple[str, ...] = ("1x1",)
    lease: str = "device"
    min_efficiency: float = 0.8
    nvml: bool = False
    container: Container = Container()
    images: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    uv: Mapping[str, str] = field(default_factory=dict)
    expected: tuple[Expected, ...] = ()


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
    def metric(self) -> Metric:
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
        problems = _choice(file, "metric.direction", table.metric.direction, DIRECTIONS)
        problems += [*_ranges(file, table)]
        for name, scale in table.scales.items():
            for item in scale.data:
                problems += _choice(file, f"scales.{name}.data: kind of {item.path}", item.kind, KINDS)
        _raise(problems)
        return table


@dataclass(frozen=True)
class Vendor:
    """One maker of accelerators: a folder with a vendor.toml, which is read when first asked for."""

    name: str
    path: Path
    root: Path

    @property
    def title(self) -> str:
        return self._table.name

    @property
    def device(self) -> str:
        return self._table.device

    @property
    def backend(self) -> str:
        return self._table.backend

    @property
    def modules(self) -> tuple[str, ...]:
        """What a rank imports, in this order, before it touches its device."""
        return self._table.modules

    @property
    def visible_devices(self) -> str | None:
        return self._table.visible_devices

    @property
    def runtime(self) -> str:
        return self._table.runtime

    @property
    def scale(self) -> str:
        return self._table.scale

    @property
    def lease(self) -> str:
        return self._table.lease

    @property
    def min_efficiency(self) -> float:
        return self._table.min_efficiency

    @property
    def nvml(self) -> bool:
        """Whether its devices are asked through NVML."""
        return self._table.nvml

    @property
    def device_module(self) -> Path | None:
        """The vendor's own functions for its device, where torch's do not fit."""
        file = self.path / "device.py"
        return file if file.is_file() else None

    @property
    def probe(self) -> Path | None:
        """The vendor's own way to ask its devices."""
        file = self.path / "probe.py"
        return file if file.is_file() else None

    @property
    def chips(self) -> Mapping[str, Chip]:
        return self._table.chips

    @property
    def container(self) -> Container:
        return self._table.container

    def image(self, framework: str) -> VendorImage | None:
        """What its containers of a framework, or of one version of it, are made of."""
        return images.find(self._table.images, self.path / "vendor.toml", framework)

    def unused_images(self, framework: str, frameworks: Collection[str]) -> list[str]:
        """Sentences on those without effect; ``frameworks`` are those that suites are written in."""
        return images.unused(self._table.images, self.path / "vendor.toml", framework, frameworks)

    @property
    def environment(self) -> Mapping[str, str]:
        """What every rank has in its environment; a case's own file is sourced on top of it."""
        return self._table.environment

    @property
    def uv_settings(self) -> Mapping[str, str]:
        """Settings of uv for the environments of --runtime=venv, where the packages are found with them."""
        return self._table.uv

    @property
    def expected(self) -> tuple[Expected, ...]:
        """Failures of its cases that are known beforehand."""
        return self._table.expected

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(map(Shape.parse, self._table.shapes))

    @property
    def hardware(self) -> str:
        """The chip meant when nobody names one: the first."""
        return next(iter(self.chips))

    def peak_tflops(self, hardware: str, precision: str) -> float | None:
        chip = self.chips.get(hardware)
        return chip.peak_tflops.get(precision) if chip else None

    @cached_property
    def _table(self) -> _VendorTable:
        file = self.path / "vendor.toml"
        table = read(_VendorTable, file)
        _raise(list(_wrong(file, table)))
        return table


def _wrong(file: Path, table: _VendorTable) -> Iterator[str]:
    if not VENDOR_NAME.fullmatch(file.parent.name):
        yield f"{file.parent}: the folder is called {file.parent.name!r}; {VENDOR_NAME_WANTED}"
    if not table.chips:
        yield f"{file}: chips: a vendor has at least one, as in [chips.NAME]"
    for key, allowed in (("runtime", RUNTIMES), ("scale", SCALES), ("lease", LEASES)):
        yield from _choice(file, key, getattr(table, key), allowed)
    for key in ("name", "device", "backend"):
        if not getattr(table, key).strip():
            yield f"{where(file, key)}: {key} is empty"
    yield from _modules(file, table.modules)
    if not 0 < table.min_efficiency <= BEST_EFFICIENCY:
        said = f"min_efficiency is {table.min_efficiency}; allowed: more than 0, up to {BEST_EFFICIENCY}"
        yield f"{where(file, 'min_efficiency')}: {said}"
    yield from _container(file, table.container)
    yield from images.problems(table.images, file)
    yield from (
        f"{where(file, 'environment', name)}: environment.{name}: no shell can set a variable of that name; "
        "allowed: letters, digits and _"
        for name in table.environment
        if not _VARIABLE.fullmatch(name)
    )
    yield from (
        f"{where(file, 'uv', name)}: uv.{name}: unknown setting{near(name, RESULT_SETTINGS)}; choose from"
        f" {', '.join(RESULT_SETTINGS)}"
        for name in table.uv
        if name not in RESULT_SETTINGS
    )
    for number, one in enumerate(table.expected):
        for problem in expectations.problems(one):
            yield f"{where(file, 'expected', str(number))}: [[expected]] {number + 1}: {problem}"
    for name, chip in table.chips.items():
        yield from _chip(file, name, chip)
    yield from (f"{where(file, 'shapes')}: shapes: {problem}" for problem in _shapes(table.shapes))


def _shapes(shapes: tuple[str, ...]) -> Iterator[str]:
    if not shapes:
        yield 'there is none, so nothing would run; wanted are some, as in ["1x1", "1x8"]'
    for shape in dict.fromkeys(shapes):
        if shapes.count(shape) > 1:
            yield f"{shape!r} is there {shapes.count(shape)} times; once is wanted"
        try:
            Shape.parse(shape)
        except CaseError as error:
            yield from error.problems


def _modules(file: Path, modules: tuple[str, ...]) -> list[str]:
    wrong = [name for name in modules if not all(part.isidentifier() for part in name.split("."))]
    wanted = 'wanted are names of modules, as in ["torch_acme"]'
    return [f"{where(file, 'modules')}: modules: {name!r} cannot be imported; {wanted}" for name in wrong]


def _chip(file: Path, name: str, chip: Chip) -> list[str]:
    found = [("names", problem) for problem in _patterns(chip.names)]
    if chip.devices_per_host is not None and chip.devices_per_host < 1:
        found.append(("devices_per_host", f" is {chip.devices_per_host}; allowed: 1 and more"))
    for precision in chip.peak_tflops.keys() - set(PRECISIONS):
        allowed = near(precision, list(PRECISIONS)) or f"; allowed: {', '.join(PRECISIONS)}"
        found.append(("peak_tflops", f".{precision}: no such precision{allowed}"))
    wanted = "more than 0, or nothing where nobody knows it"
    if chip.memory_gib is not None and chip.memory_gib <= 0:
        found.append(("memory_gib", f" is {chip.memory_gib:g}; allowed: {wanted}"))
    for precision, peak in chip.peak_tflops.items():
        if peak <= 0:
            found.append(("peak_tflops", f".{precision} is {peak:g}; allowed: {wanted}"))
    return [f"{where(file, 'chips', name, key)}: chips.{name}.{key}{problem}" for key, problem in found]


def _container(file: Path, container: Container) -> list[str]:
    problems = []
    try:
        docker_options.parse(container.options, "container.options")
    except docker_options.OptionsError as error:
        problems += [f"{where(file, 'container', 'options')}: {problem}" for problem in error.problems]
    try:
        docker_options.size(container.shm_size or docker_options.SHM_SIZE)
    except ValueError as error:
        at = where(file, "container", "shm_size")
        problems.append(f"{at}: container.shm_size is {container.shm_size!r}: {error}")
    return problems


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


def _choice(file: Path, key: str, value: str, allowed: tuple[str, ...]) -> list[str]:
    if value in allowed:
        return []
    at = where(file, *key.split("."))
    return [f"{at}: {key} is {value!r}; allowed: {', '.join(allowed)}{near(value, list(allowed))}"]


def _patterns(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        try:
            if re.search(pattern, ""):
                yield f": {pattern!r} is found in any name; wanted is what the tool calls this chip"
        except re.error as error:
            yield f": {pattern!r} is no regular expression: {error}"


def _raise(problems: list[str]) -> None:
    if problems:
        raise CatalogError(problems)
