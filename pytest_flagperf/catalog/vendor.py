"""A vendor and its vendor.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from flagperf_driver import extern
from flagperf_driver.node.environments.environment import RESULT_SETTINGS
from pytest_flagperf.stored.plan import is_cpu

from ..case import CaseError, Shape
from ..expected import KnownProblem
from ..problems import near
from ..runtime.docker import run_options as docker_options
from . import vendor_images
from .suite import BANDWIDTHS, PRECISIONS, REFERENCE, SCALES
from .toml_reader import choice, raise_if_any, read, where
from .vendor_images import VendorImage

LEASES = ("device", "host")
RUNTIMES = ("host", "venv", "docker", "apptainer", "pyxis")
MIN_EFFICIENCY, MIN_EFFICIENCY_OF_CORES = 0.8, 0.55
"""Required speed-up per card; cores of a CPU share caches and memory, and the exchange of gradients uses them too."""
BEST_EFFICIENCY = 1.5
"""Maximum value of min_efficiency."""
FOLDER_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The name of a vendor's folder, which may contain modules and is part of file names."""
FOLDER_NAME_RULE = "expected lowercase letters, digits and _, beginning with a letter"
_FRAMEWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Chip:
    devices_per_host: int | None = None
    """Devices of a host."""
    memory_gib: float | None = None
    """Memory of a device, for documents and to say which cases fit."""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    """Dense peak by precision, such as ``{ bf16 = 312 }``; needed for MFU. For int8: tera-operations per second."""
    source: str = ""
    """The document that states the peaks."""
    memory_gb_s: float | None = None
    """Peak bandwidth of a device's memory in GB/s."""
    host_gb_s: float | None = None
    """Peak bandwidth between a device and its host in GB/s, in one direction."""
    link_gb_s: float | None = None
    """Peak bandwidth of all links between a device and the others of its host in GB/s, in one direction."""
    promised: Mapping[str, float] = field(default_factory=dict)
    """Share of a peak that a measurement must reach, such as ``{ "peak_tflops.bf16" = 0.7, memory_gb_s = 0.8 }``."""
    pci: tuple[str, ...] = ()
    """The chip's PCI ids, vendor:device, which the kernel reports of each device, such as ``["10de:2330"]``."""
    devices_per_pci: int = 1
    """Devices of a PCI device, such as 2 of a module of two."""
    names: tuple[str, ...] = ()
    """Regular expressions for the name that the vendor's tool prints; default: the chip's key as a word."""

    @property
    def peaks(self) -> dict[str, float]:
        """The declared peaks in FLOP/s (int8: operations per second) and B/s, by their keys, as in ``promised``."""
        bandwidths = {key: getattr(self, key) for key in BANDWIDTHS}
        return {
            **{f"peak_tflops.{precision}": peak * 1e12 for precision, peak in self.peak_tflops.items()},
            **{key: peak * 1e9 for key, peak in bandwidths.items() if peak is not None},
        }


@dataclass(frozen=True)
class ContainerDefaults:
    """Docker options of the vendor's containers."""

    options: tuple[str, ...] = ()
    """Words of docker run, which give a container its devices."""

    REPLACED_KEYS: ClassVar[Mapping[str, str]] = {"shm_size": 'write it in options: "--shm-size", "32g"'}


@dataclass(frozen=True)
class FrameworkNames:
    """A framework's names of the vendor's devices: the table [framework.NAME]."""

    device: str
    """The framework's device type, such as ``cuda`` or ``npu``."""
    backend: str
    """The backend of collective communication."""
    modules: tuple[str, ...] = ()
    """Modules that each rank imports first, in this order."""


@dataclass(frozen=True)
class VendorToml:
    """The contents of a vendor.toml."""

    name: str
    """The name for people."""
    framework: Mapping[str, FrameworkNames]
    """One table for each framework that runs on the devices."""
    chips: Mapping[str, Chip]
    """One table for each chip; the first is the default of --hw."""
    visible_devices: str | None = None
    """The variable that limits a process to its devices; without it a case uses the first devices."""
    runtime: str = "venv"
    """Default of --runtime."""
    scale: str = REFERENCE
    """Default of --scale."""
    shapes: tuple[str, ...] = ("1x1",)
    """Default of --nodes."""
    lease: str = "device"
    """What a case leases: its devices or the whole host."""
    min_efficiency: float | None = None
    """Required speed-up per card, if it is to be stricter than 0.8 (0.55 if the cards are cores of a CPU)."""
    nvml: bool = False
    """Read the devices through NVML."""
    container: ContainerDefaults = ContainerDefaults()
    """The vendor's containers."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Container images by framework, or framework and version."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every rank; a case's environment_variables.sh may override them."""
    uv: Mapping[str, str] = field(default_factory=dict)
    """Settings of uv for --runtime=venv, for example the index of the packages."""
    known_problem: tuple[KnownProblem, ...] = ()
    """Problems of the vendor's cases, which every report shows; they excuse no verdict."""

    REPLACED_KEYS: ClassVar[Mapping[str, str]] = {
        "expected": "a vendor's folder excuses no verdict; state the problem as [[known_problem]] with case and text,"
        " which reports show; only the user's flagperf.toml has [[expected]]"
    }


@dataclass(frozen=True)
class Vendor:
    """One maker of accelerators: a folder with a vendor.toml, which is read on first use."""

    name: str
    path: Path
    root: Path

    def device_module(self, framework: str) -> Path | None:
        """Return the file with the vendor's device hooks; None if it does not exist or the framework has no hooks."""
        file = self.path / "device.py"
        return file if file.is_file() and extern.has_hooks(framework) else None

    @property
    def probe(self) -> Path | None:
        """The file with the vendor's function to read its devices; None if it does not exist."""
        file = self.path / "probe.py"
        return file if file.is_file() else None

    @property
    def chips(self) -> Mapping[str, Chip]:
        return self.toml.chips

    def image(self, framework: str) -> VendorImage | None:
        """Return the image for a framework or a version of it."""
        return vendor_images.find(self.toml.images, self.path / "vendor.toml", framework)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(map(Shape.parse, self.toml.shapes))

    @property
    def hardware(self) -> str:
        """The default chip: the first in vendor.toml."""
        return next(iter(self.chips))

    def min_efficiency(self, framework: str, suites: float | None = None) -> float:
        """Return the required speed-up per card: the suite's, else the usual one, or the vendor's if it is stricter."""
        usual = _usual_efficiency(self.toml.framework[framework]) if suites is None else suites
        return max(usual, self.toml.min_efficiency or 0)

    def chip(self, hardware: str) -> Chip:
        """Return what the vendor declares of a chip, nothing of a variant that only config files name."""
        return self.chips.get(hardware, Chip())

    @cached_property
    def toml(self) -> VendorToml:
        """The checked contents of the file."""
        file = self.path / "vendor.toml"
        table = read(VendorToml, file)
        raise_if_any(list(_problems(file, table)))
        return table


def _problems(file: Path, table: VendorToml) -> Iterator[str]:
    if not FOLDER_NAME.fullmatch(file.parent.name):
        yield f"{file.parent}: invalid folder name {file.parent.name!r}; {FOLDER_NAME_RULE}"
    if not table.chips:
        yield f"{file}: chips: expected at least one, as in [chips.NAME]"
    for key, allowed in (("runtime", RUNTIMES), ("scale", SCALES), ("lease", LEASES)):
        yield from choice(file, key, getattr(table, key), allowed)
    if not table.name.strip():
        yield f"{where(file, 'name')}: name is empty"
    if not table.framework:
        yield f"{file}: framework: expected at least one, as in [framework.pytorch]"
    for name, names in table.framework.items():
        yield from _framework(file, name, names)
    yield from _efficiency(file, table)
    yield from _container(file, table.container)
    yield from vendor_images.problems(table.images, file)
    yield from (
        f"{where(file, 'environment', name)}: environment.{name}: invalid name of a variable; "
        "expected letters, digits and _, not beginning with a digit"
        for name in table.environment
        if not _VARIABLE.fullmatch(name)
    )
    yield from (
        f"{where(file, 'uv', name)}: uv.{name}: unknown setting{near(name, RESULT_SETTINGS)}; choose from"
        f" {', '.join(RESULT_SETTINGS)}"
        for name in table.uv
        if name not in RESULT_SETTINGS
    )
    for number, one in enumerate(table.known_problem):
        for problem in one.problems():
            yield f"{where(file, 'known_problem', str(number))}: [[known_problem]] {number + 1}: {problem}"
    for name, chip in table.chips.items():
        yield from _chip(file, name, chip)
    yield from (f"{where(file, 'shapes')}: shapes: {problem}" for problem in _shapes(table.shapes))


def _usual_efficiency(names: FrameworkNames) -> float:
    return MIN_EFFICIENCY_OF_CORES if is_cpu(names.device) else MIN_EFFICIENCY


def _efficiency(file: Path, table: VendorToml) -> Iterator[str]:
    """Yield a problem if the vendor asks for a lower efficiency than the usual one."""
    least = min(map(_usual_efficiency, table.framework.values()), default=MIN_EFFICIENCY)
    if table.min_efficiency is not None and not least <= table.min_efficiency <= BEST_EFFICIENCY:
        yield (
            f"{where(file, 'min_efficiency')}: min_efficiency is {table.min_efficiency}; expected at least {least} and"
            f" at most {BEST_EFFICIENCY}: a vendor's folder may ask for more than {least}, not for less; remove the key"
        )


def _shapes(shapes: tuple[str, ...]) -> Iterator[str]:
    if not shapes:
        yield 'empty list; expected at least one shape, as in ["1x1", "1x8"]'
    for shape in dict.fromkeys(shapes):
        if shapes.count(shape) > 1:
            yield f"{shape!r} is listed {shapes.count(shape)} times"
        try:
            Shape.parse(shape)
        except CaseError as error:
            yield from error.problems


def _framework(file: Path, name: str, names: FrameworkNames) -> Iterator[str]:
    table = f"framework.{name}"
    # These have a trainer; a suite of another framework brings its own.
    known = sorted(path.parent.name for path in Path(extern.__file__).parent.glob("*/main.py"))
    if not _FRAMEWORK.fullmatch(name):
        expected = "expected a framework without a version, as in [framework.pytorch]"
        yield f"{where(file, 'framework', name)}: {table}: {expected}"
    elif name not in known and (hint := near(name, known)):
        yield f"{where(file, 'framework', name)}: [{table}]: unknown framework{hint}"
    for key in ("device", "backend"):
        if not getattr(names, key).strip():
            yield f"{where(file, 'framework', name, key)}: {table}.{key} is empty"
    if ":" in names.device:
        at = where(file, "framework", name, "device")
        yield f"{at}: {table}.device is {names.device!r}; expected a device type without an index, such as cuda or npu"
    at = f"{where(file, 'framework', name, 'modules')}: {table}.modules"
    for module in names.modules:
        if not all(part.isidentifier() for part in module.split(".")):
            yield f'{at}: {module!r} is not a module name; expected module names, as in ["torch_acme"]'


def _chip(file: Path, name: str, chip: Chip) -> list[str]:
    problems = [("names", problem) for problem in _patterns(chip.names)]
    for text in chip.pci:
        if not re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", text):
            problems.append(("pci", f": {text!r} is no PCI id; expected vendor:device as lspci -n prints, 10de:2330"))
    if chip.peaks and not chip.source:
        key = next(iter(chip.peaks)).partition(".")[0]
        problems.append((key, ' has no source; add source = "DOCUMENT", which states the peaks'))
    if chip.devices_per_host is not None and chip.devices_per_host < 1:
        problems.append(("devices_per_host", f" is {chip.devices_per_host}; expected at least 1"))
    for precision in chip.peak_tflops.keys() - set(PRECISIONS):
        allowed = near(precision, list(PRECISIONS)) or f"; allowed: {', '.join(PRECISIONS)}"
        problems.append(("peak_tflops", f".{precision}: no such precision{allowed}"))
    expected = "expected more than 0; remove the key if the value is unknown"
    for key in ("memory_gib", *BANDWIDTHS):
        value = getattr(chip, key)
        if value is not None and value <= 0:
            problems.append((key, f" is {value:g}; {expected}"))
    for precision, peak in chip.peak_tflops.items():
        if peak <= 0:
            problems.append(("peak_tflops", f".{precision} is {peak:g}; {expected}"))
    for key, share in chip.promised.items():
        if key not in chip.peaks:
            declared = ", ".join(chip.peaks) or "none"
            problems.append(
                (
                    "promised",
                    f".{key}: the chip declares no such peak{near(key, list(chip.peaks))}; declared: {declared}",
                )
            )
        elif not 0 < share <= 1:
            problems.append(
                ("promised", f".{key} is {share:g}; expected a share of the peak, more than 0 and at most 1")
            )
    return [f"{where(file, 'chips', name, key)}: chips.{name}.{key}{problem}" for key, problem in problems]


def _container(file: Path, container: ContainerDefaults) -> list[str]:
    try:
        docker_options.parse(container.options, "container.options")
    except docker_options.OptionsError as error:
        return [f"{where(file, 'container', 'options')}: {problem}" for problem in error.problems]
    return []


def _patterns(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        try:
            if re.search(pattern, ""):
                yield f": {pattern!r} matches every name; expected the chip's name as the tool prints it"
        except re.error as error:
            yield f": {pattern!r} is not a regular expression: {error}"
