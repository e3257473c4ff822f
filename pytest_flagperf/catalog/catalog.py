"""Which suites, vendors and configs there are: found by looking at folders, nothing imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..case import Case, Shape
from ..problems import near
from .suite import REFERENCE, Suite
from .toml_reader import CatalogError
from .vendor import Vendor

# The chip's name may itself hold an x and digits: the last two numbers are the shape.
_CONFIG = re.compile(r"config_(.+)x([1-9][0-9]*)x([1-9][0-9]*)\.py")

_WITHOUT = "; --scale=small needs none"

Configs = Mapping[tuple[str, Shape], Path]


@dataclass(frozen=True)
class Catalog:
    """Everything below the roots. Listings are kept: a catalog is a look at one moment."""

    roots: tuple[Path, ...]
    suites: Mapping[tuple[str, str], Suite]
    vendors: Mapping[str, Vendor]
    packages: Mapping[Path, str] = field(default_factory=dict)
    """Of roots that an installed package brings, which it is."""
    _configs: dict[tuple[Path, str], Configs] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def scan(cls, roots: Sequence[Path], packages: Mapping[Path, str] | None = None) -> Catalog:
        """Roots hold ``suites/<model>/<framework>/suite.toml`` and ``vendors/<vendor>/vendor.toml``."""
        unique = tuple(dict.fromkeys(Path(root).resolve() for root in roots))
        problems: list[str] = []
        suites: dict[tuple[str, str], Suite] = {}
        vendors: dict[str, Vendor] = {}
        for root in unique:
            for suite in _suites(root):
                known = suites.setdefault((suite.model, suite.framework), suite)
                problems += _twice(f"suite {suite.name}", known, suite, packages or {})
            for vendor in _vendors(root):
                first = vendors.setdefault(vendor.name, vendor)
                problems += _twice(f"vendor {vendor.name}", first, vendor, packages or {})
        if problems:
            raise CatalogError(problems)
        return cls(unique, suites, vendors, packages or {})

    def over(self, defaults: Catalog, *, with_suites: bool) -> Catalog:
        """Return this catalog with the vendors, and maybe suites, of the defaults whose names are not in use here."""
        return replace(
            self,
            roots=tuple(dict.fromkeys((*self.roots, *defaults.roots))),
            suites={**(defaults.suites if with_suites else {}), **self.suites},
            vendors={**defaults.vendors, **self.vendors},
            packages={**defaults.packages, **self.packages},
        )

    def suite(self, model: str, framework: str) -> Suite:
        """Return the suite of a case's model and framework, in any spelling of the model's capital letters.

        The version of a framework has no folder of its own.
        """
        name = framework.partition("_")[0]
        if (found := self.suites.get((model, name))) is not None:
            return found
        alike = [one for (own, of), one in self.suites.items() if own.lower() == model.lower() and of == name]
        if len(alike) != 1:
            raise CatalogError([self._no_suite(model, name)])
        return alike[0]

    def vendor(self, name: str) -> Vendor:
        if name not in self.vendors:
            names = sorted(self.vendors)
            folders = (folder for root in self.roots for folder in root.glob("vendors/*") if folder.name == name)
            bare = [str(folder) for folder in folders if folder.is_dir()]
            if bare:
                raise CatalogError([f"vendor {name!r}: there is no vendor.toml in {' or '.join(bare)}"])
            elsewhere = "; one that is elsewhere: --roots=DIR, with DIR/vendors"
            raise CatalogError([f"vendor {name!r}: no such folder in vendors/{_instead(name, names)}{elsewhere}"])
        return self.vendors[name]

    def case_folder(self, suite: Suite, vendor: Vendor) -> Path:
        """What the vendor has for the suite; a root may bring it for its own suites."""
        beside = suite.root / "vendors" / vendor.name / suite.folder
        return beside if beside.is_dir() else vendor.path / suite.folder

    def configs(self, suite: Suite, vendor: Vendor) -> Configs:
        """The config files of a suite for a vendor, by hardware and shape."""
        key = (suite.path, vendor.name)
        if key not in self._configs:
            self._configs[key] = list_configs(self.case_folder(suite, vendor) / "config")
        return self._configs[key]

    def find(self, case: Case, vendor: str, scale: str) -> Path | None:
        """The vendor's config file of a case, None at scales that no vendor tunes."""
        suite, maker = self.suite(case.model, case.framework), self.vendor(vendor)
        problem = self.unsupported(suite, maker, case.hardware, case.shape, scale)
        if problem:
            raise CatalogError([f"case {case}: {problem}"])
        return self.configs(suite, maker)[case.hardware, case.shape] if scale == REFERENCE else None

    def unsupported(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape, scale: str) -> str | None:
        """Why a suite cannot run so, and what exists instead; None where it can."""
        if scale not in suite.scales:
            names = sorted(suite.scales)
            return f"{suite.name} has no scale {scale!r}{_instead(scale, names)}"
        return (
            self._unknown_hardware(suite, vendor, hardware)
            or _too_many(vendor, hardware, shape)
            or (self._no_config(suite, vendor, hardware, shape) if scale == REFERENCE else None)
        )

    def _unknown_hardware(self, suite: Suite, vendor: Vendor, hardware: str) -> str | None:
        if hardware in vendor.chips:
            return None
        # A config file may name a variant of a chip as its hardware, as some of the original's do.
        known = list(dict.fromkeys([*vendor.chips, *(name for name, _ in self.configs(suite, vendor))]))
        if hardware in known:
            return None
        return f"hardware {hardware!r} is no chip of {vendor.name}{_instead(hardware, known)}"

    def _no_config(self, suite: Suite, vendor: Vendor, hardware: str, shape: Shape) -> str | None:
        configs = self.configs(suite, vendor)
        if (hardware, shape) in configs:
            return None
        wanted = f"config_{hardware}x{shape}.py"
        if configs:
            return f"no {wanted} of {vendor.name} for {suite.name}; there are: {_by_hardware(configs)}"
        others = {other.folder for other in self.suites.values()}
        folders = sorted(path.name for path in vendor.path.iterdir() if (path / "config").is_dir())
        meant = near(suite.folder, [folder for folder in folders if folder not in others])
        return f"{vendor.name} has no config for {suite.name} (wanted: {wanted}){meant or _WITHOUT}"

    def _no_suite(self, model: str, framework: str) -> str:
        frameworks = sorted(other for name, other in self.suites if name == model)
        if frameworks:
            return f"model {model!r} has no framework {framework!r}{_instead(framework, frameworks)}"
        models = sorted({name for name, _ in self.suites})
        return f"model {model!r}: no such folder in suites/{_instead(model, models)}"


def _suites(root: Path) -> list[Suite]:
    files = sorted(root.glob("suites/*/*/suite.toml"))
    return [Suite(file.parts[-3], file.parts[-2], file.parent, root) for file in files]


def _vendors(root: Path) -> list[Vendor]:
    return [Vendor(file.parts[-2], file.parent, root) for file in sorted(root.glob("vendors/*/vendor.toml"))]


def list_configs(folder: Path) -> Configs:
    """Return the config files of a folder, by hardware and shape."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted of 10,000 files
    except (FileNotFoundError, NotADirectoryError):
        return {}
    matches = filter(None, map(_CONFIG.fullmatch, names))
    return {(match[1], Shape(int(match[2]), int(match[3]))): folder / match[0] for match in matches}


def _too_many(vendor: Vendor, hardware: str, shape: Shape) -> str | None:
    chip = vendor.chips.get(hardware)
    held = chip.devices_per_host if chip else None
    if held is None or shape.nproc <= held:
        return None
    return f"shape {shape} wants {shape.nproc} cards on each host; of {hardware} a host has {held}"


def _by_hardware(configs: Configs) -> str:
    shapes: dict[str, list[Shape]] = {}
    for hardware, shape in configs:
        shapes.setdefault(hardware, []).append(shape)
    return "; ".join(f"{hardware} {', '.join(map(str, sorted(held)))}" for hardware, held in shapes.items())


def _instead(name: str, names: list[str]) -> str:
    return near(name, names) + (f" (there are: {', '.join(names)})" if names else " (there are none)")


def _twice(what: str, first: Suite | Vendor, second: Suite | Vendor, packages: Mapping[Path, str]) -> list[str]:
    if first.path == second.path:
        return []
    one, other = (
        f"{entry.path}{f' (of {packages[entry.root]})' if entry.root in packages else ''}" for entry in (first, second)
    )
    uninstall = ", or uninstall the package" if {first.root, second.root} & packages.keys() else ""
    return [f"{what} is there twice: {one} and {other}; keep one: take the other's folder or root away{uninstall}"]
