"""The catalog: all suites, vendors and configs below the roots, found without imports."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ..case import Case, Shape
from ..problems import near
from ..stored.plan import TRAINING
from .suite import REFERENCE, Suite, framework_of
from .toml_reader import CatalogError
from .vendor import Vendor

# A chip's name may also contain an x and digits: the last two numbers are the shape.
_CONFIG = re.compile(r"config_(.+)x([1-9][0-9]*)x([1-9][0-9]*)\.py")

_USE_SMALL = "; --scale=small needs no config"

Configs = Mapping[tuple[str, Shape], Path]


@dataclass(frozen=True)
class Catalog:
    """All suites, vendors and configs below the roots; listings are cached."""

    roots: tuple[Path, ...]
    suites: Mapping[tuple[str, str], Suite]
    vendors: Mapping[str, Vendor]
    packages: Mapping[Path, str] = field(default_factory=dict)
    """The roots in installed packages, each with its package."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """The vendors whose folder replaces another of the same name, each with what the other is part of."""
    _configs: dict[tuple[Path, str], Configs] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def scan(cls, roots: Sequence[Path], packages: Mapping[Path, str] | None = None) -> Catalog:
        """Find ``suites/<model>/<framework>/suite.toml`` and ``vendors/<vendor>/vendor.toml`` in the roots."""
        unique = tuple(dict.fromkeys(Path(root).resolve() for root in roots))
        problems: list[str] = []
        suites: dict[tuple[str, str], Suite] = {}
        vendors: dict[str, Vendor] = {}
        for root in unique:
            for file in sorted(root.glob("suites/*/*/suite.toml")):
                suite = Suite(file.parts[-3], file.parts[-2], file.parent, root)
                known = suites.setdefault((suite.model, suite.framework), suite)
                problems += _duplicate(f"suite {suite.name}", known, suite, packages or {})
            for file in sorted(root.glob("vendors/*/vendor.toml")):
                vendor = Vendor(file.parts[-2], file.parent, root)
                first = vendors.setdefault(vendor.name, vendor)
                problems += _duplicate(f"vendor {vendor.name}", first, vendor, packages or {})
        if problems:
            raise CatalogError(problems)
        return cls(unique, suites, vendors, packages or {})

    @property
    def trainings(self) -> Mapping[tuple[str, str], Suite]:
        """The suites that train; the others measure."""
        return {key: suite for key, suite in self.suites.items() if suite.kind == TRAINING}

    def over(self, defaults: Catalog, *, with_suites: bool) -> Catalog:
        """Return this catalog plus the vendors, and if requested the suites, that only the defaults have."""
        replaced = {name: one for name, one in defaults.vendors.items() if name in self.vendors}
        return replace(
            self,
            roots=tuple(dict.fromkeys((*self.roots, *defaults.roots))),
            suites={**(defaults.suites if with_suites else {}), **self.suites},
            vendors={**defaults.vendors, **self.vendors},
            packages={**defaults.packages, **self.packages},
            replaced={name: defaults.packages.get(one.root, str(one.root)) for name, one in replaced.items()},
        )

    def suite(self, model: str, framework: str) -> Suite:
        """Return the suite of a model, in upper or lower case, and of a framework, without regard to its version."""
        name = framework.partition("_")[0]
        if (suite := self.suites.get((model, name))) is not None:
            return suite
        similar = [suite for (other, of), suite in self.suites.items() if other.lower() == model.lower() and of == name]
        if len(similar) != 1:
            raise CatalogError([self._no_suite(model, name)])
        return similar[0]

    def figure_of(self, original: str, framework: str) -> tuple[Suite, str] | None:
        """Return the suite and its figure that measure what a case of FlagPerf's base measures; None without one."""
        for suite in self.suites.values():
            if suite.framework == framework:
                for name, figure in suite.figures.items():
                    if figure.original == original:
                        return suite, name
        return None

    def vendor(self, name: str) -> Vendor:
        if name not in self.vendors:
            names = sorted(self.vendors)
            folders = (folder for root in self.roots for folder in root.glob("vendors/*") if folder.name == name)
            incomplete = [str(folder) for folder in folders if folder.is_dir()]
            if incomplete:
                raise CatalogError([f"vendor {name!r}: no vendor.toml in {' or '.join(incomplete)}"])
            elsewhere = "; if DIR/vendors contains this vendor, pass --roots=DIR"
            raise CatalogError([f"vendor {name!r}: no such folder in vendors/{_choices(name, names)}{elsewhere}"])
        return self.vendors[name]

    def case_folder(self, suite: Suite, vendor: Vendor) -> Path:
        """Return the vendor's folder for the suite, in the suite's root or else in the vendor's own."""
        beside = suite.root / "vendors" / vendor.name / suite.folder
        return beside if beside.is_dir() else vendor.path / suite.folder

    @cached_property
    def unused_folders(self) -> Sequence[Path]:
        """The vendors' folders with configs or steps that belong to no suite in the roots, loaded or not."""
        suites = {"-".join(folder.parts[-2:]) for root in self.roots for folder in root.glob("suites/*/*")}
        parts = [f"vendors/*/*/{name}" for name in ("config", "extern")]
        folders = {found.parent for root in self.roots for part in parts for found in root.glob(part)}
        return sorted(folder for folder in folders if folder.name not in suites)

    def notes_on_folders(self, vendors: Collection[str]) -> Iterator[str]:
        """Yield a note for each folder of these vendors that no suite uses; its name may be misspelt."""
        known = [suite.folder for suite in self.suites.values()]
        for vendor, name in (folder.parts[-2:] for folder in self.unused_folders if folder.parent.name in vendors):
            yield f"vendors/{vendor}/{name} is not used: expected MODEL-FRAMEWORK of a suite{near(name, known)}"

    def configs(self, suite: Suite, vendor: Vendor) -> Configs:
        """The config files of a suite for a vendor, by hardware and shape."""
        key = (suite.path, vendor.name)
        if key not in self._configs:
            self._configs[key] = list_configs(self.case_folder(suite, vendor) / "config")
        return self._configs[key]

    def find(self, case: Case, vendor: str, scale: str) -> Path | None:
        """Return the vendor's config file of a case; None at the small scale, which no vendor tunes.

        A measurement may have one, a training at the reference scale has one.
        """
        suite, its_vendor = self.suite(case.model, case.framework), self.vendor(vendor)
        problem = self.unsupported(suite, its_vendor, case.hardware, case.shape, scale)
        if problem:
            raise CatalogError([f"case {case}: {problem}"])
        return self.configs(suite, its_vendor).get((case.hardware, case.shape)) if scale == REFERENCE else None

    def unsupported(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape, scale: str) -> str | None:
        """Return why a suite cannot run with these options, and the available choices; None if it can."""
        if scale not in suite.scales:
            names = sorted(suite.scales)
            return f"{suite.name} has no scale {scale!r}{_choices(scale, names)}"
        return (
            _no_framework(suite, vendor)
            or self._unknown_hardware(suite, vendor, hardware)
            or _too_many(vendor, hardware, shape)
            or _too_few(suite, shape)
            or (self._no_config(suite, vendor, hardware, shape) if suite.needs_data(scale) else None)
        )

    def _unknown_hardware(self, suite: Suite, vendor: Vendor, hardware: str) -> str | None:
        if hardware in vendor.chips:
            return None
        # A config file may name a variant of a chip as its hardware, as some of FlagPerf's files do.
        known = list(dict.fromkeys([*vendor.chips, *(name for name, _ in self.configs(suite, vendor))]))
        if hardware in known:
            return None
        return f"hardware {hardware!r} is not a chip of {vendor.name}{_choices(hardware, known)}"

    def _no_config(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape) -> str | None:
        configs = self.configs(suite, vendor)
        if (hardware, shape) in configs:
            return None
        missing = f"config_{hardware}x{shape}.py"
        if configs:
            return f"no {missing} of {vendor.name} for {suite.name}; available: {_by_hardware(configs)}"
        unused = [folder.name for folder in self.unused_folders if folder.parent.name == vendor.name]
        similar = near(suite.folder, unused)
        return f"{vendor.name} has no config for {suite.name} (expected {missing}){similar or _USE_SMALL}"

    def _no_suite(self, model: str, framework: str) -> str:
        frameworks = sorted(other for name, other in self.suites if name == model)
        if frameworks:
            return f"model {model!r} has no framework {framework!r}{_choices(framework, frameworks)}"
        models = sorted({name for name, _ in self.suites})
        return f"model {model!r}: no such folder in suites/{_choices(model, models)}"


def list_configs(folder: Path) -> Configs:
    """Return the config files of a folder, by hardware and shape."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - Path objects of 10,000 files take time
    except (FileNotFoundError, NotADirectoryError):
        return {}
    matches = filter(None, map(_CONFIG.fullmatch, names))
    return {(match[1], Shape(int(match[2]), int(match[3]))): folder / match[0] for match in matches}


def _no_framework(suite: Suite, vendor: Vendor) -> str | None:
    names = sorted(vendor.toml.framework)
    framework = framework_of(suite)
    if framework in names:
        return None
    add = f"add [framework.{framework}] with device and backend to {vendor.path / 'vendor.toml'}"
    return f"{vendor.name} has no framework {framework!r}{_choices(framework, names)}; {add}"


def _too_many(vendor: Vendor, hardware: str, shape: Shape) -> str | None:
    available = vendor.chip(hardware).devices_per_host
    if available is None or shape.nproc <= available:
        return None
    return f"shape {shape} needs {shape.nproc} cards on each host; a host has at most {available} of {hardware}"


def _too_few(suite: Suite, shape: Shape) -> str | None:
    if shape.cards >= suite.ranks.least:
        return None
    return f"{suite.name} needs at least {suite.ranks.least} processes; the shape {shape} has {shape.cards}"


def _by_hardware(configs: Configs) -> str:
    shapes: dict[str, list[Shape]] = {}
    for hardware, shape in configs:
        shapes.setdefault(hardware, []).append(shape)
    return "; ".join(f"{hardware} {', '.join(map(str, sorted(of_chip)))}" for hardware, of_chip in shapes.items())


def _choices(name: str, names: list[str]) -> str:
    return near(name, names) + (f" (choose from {', '.join(names)})" if names else " (none available)")


def _duplicate(name: str, first: Suite | Vendor, second: Suite | Vendor, packages: Mapping[Path, str]) -> list[str]:
    if first.path == second.path:
        return []
    one, other = (
        f"{entry.path}{f' (of {packages[entry.root]})' if entry.root in packages else ''}" for entry in (first, second)
    )
    uninstall = ", or uninstall the package" if {first.root, second.root} & packages.keys() else ""
    return [f"{name} exists twice: {one} and {other}; remove one of the folders or roots{uninstall}"]
