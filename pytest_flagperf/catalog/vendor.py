"""One vendor: what its vendor.toml says."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from flagperf_driver.node.environment import RESULT_SETTINGS

from .. import expected as expectations
from ..case import CaseError, Shape
from ..expected import Expected
from ..problems import near
from ..runtime.docker import options as docker_options
from . import images
from .images import VendorImage
from .suite import REFERENCE, SCALES
from .toml_reader import choice, raise_if_any, read, where

LEASES = ("device", "host")
RUNTIMES = ("host", "venv", "docker")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
BEST_EFFICIENCY = 1.5
"""The greatest speed-up per card that anybody may ask for."""
VENDOR_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Of its folder: in there may be modules that a rank imports, and its name is part of other files' names."""
VENDOR_NAME_RULE = "expected lowercase letters, digits and _, beginning with a letter"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Chip:
    devices_per_host: int | None = None
    memory_gib: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """What the vendor's tool calls it: regular expressions; without any, its key as a word of the name."""


@dataclass(frozen=True)
class ContainerDefaults:
    """How the vendor's containers are started."""

    options: tuple[str, ...] = ()  # words of the docker command line
    shm_size: str | None = None


@dataclass(frozen=True)
class VendorToml:
    """The contents of a vendor.toml."""

    name: str
    device: str
    backend: str
    chips: Mapping[str, Chip]
    modules: tuple[str, ...] = ()
    """What a rank imports, in this order, before it touches its device."""
    visible_devices: str | None = None
    runtime: str = "venv"
    scale: str = REFERENCE
    shapes: tuple[str, ...] = ("1x1",)
    lease: str = "device"
    min_efficiency: float = 0.8
    nvml: bool = False
    """Whether its devices are asked through NVML."""
    container: ContainerDefaults = ContainerDefaults()
    images: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    uv: Mapping[str, str] = field(default_factory=dict)
    """Settings of uv for the environments of --runtime=venv, where the packages are found with them."""
    expected: tuple[Expected, ...] = ()


@dataclass(frozen=True)
class Vendor:
    """One maker of accelerators: a folder with a vendor.toml, which is read when first asked for."""

    name: str
    path: Path
    root: Path

    @property
    def title(self) -> str:
        return self.toml.name

    @property
    def runtime(self) -> str:
        return self.toml.runtime

    @property
    def scale(self) -> str:
        return self.toml.scale

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
        return self.toml.chips

    def image(self, framework: str) -> VendorImage | None:
        """What its containers of a framework, or of one version of it, are made of."""
        return images.find(self.toml.images, self.path / "vendor.toml", framework)

    def unused_images(self, framework: str, frameworks: Collection[str]) -> list[str]:
        """Sentences on those without effect; ``frameworks`` are those that suites are written in."""
        return images.unused(self.toml.images, self.path / "vendor.toml", framework, frameworks)

    @property
    def environment(self) -> Mapping[str, str]:
        """What every rank has in its environment; a case's own file is sourced on top of it."""
        return self.toml.environment

    @property
    def expected(self) -> tuple[Expected, ...]:
        """Failures of its cases that are known beforehand."""
        return self.toml.expected

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(map(Shape.parse, self.toml.shapes))

    @property
    def hardware(self) -> str:
        """The chip meant when nobody names one: the first."""
        return next(iter(self.chips))

    def peak_tflops(self, hardware: str, precision: str) -> float | None:
        chip = self.chips.get(hardware)
        return chip.peak_tflops.get(precision) if chip else None

    @cached_property
    def toml(self) -> VendorToml:
        """The checked contents of the file."""
        file = self.path / "vendor.toml"
        table = read(VendorToml, file)
        raise_if_any(list(_wrong(file, table)))
        return table


def _wrong(file: Path, table: VendorToml) -> Iterator[str]:
    if not VENDOR_NAME.fullmatch(file.parent.name):
        yield f"{file.parent}: the folder is called {file.parent.name!r}; {VENDOR_NAME_RULE}"
    if not table.chips:
        yield f"{file}: chips: a vendor has at least one, as in [chips.NAME]"
    for key, allowed in (("runtime", RUNTIMES), ("scale", SCALES), ("lease", LEASES)):
        yield from choice(file, key, getattr(table, key), allowed)
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


def _container(file: Path, container: ContainerDefaults) -> list[str]:
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


def _patterns(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        try:
            if re.search(pattern, ""):
                yield f": {pattern!r} is found in any name; wanted is what the tool calls this chip"
        except re.error as error:
            yield f": {pattern!r} is no regular expression: {error}"
