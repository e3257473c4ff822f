"""Where suites and vendors are looked for: the roots of the settings, and installed packages that bring some."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from ..settings import LACKS, Settings, holds_some
from .scan import Catalog
from .tables import CatalogError

GROUP = "flagperf_roots"


def scan(settings: Settings) -> Catalog:
    """All suites and vendors that there are."""
    packages = installed()
    return Catalog.scan([*map(Path, settings.roots), *packages], packages)


def installed() -> dict[Path, str]:
    """The folders of packages that an entry point names, each with its distribution; to be asked in runs alone."""
    packages: dict[Path, str] = {}
    problems: list[str] = []
    for point in entry_points(group=GROUP):
        who = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        try:
            packages |= dict.fromkeys(_roots(point), who)
        except CatalogError as error:
            said = f"the installed {who}: its entry point {point.name} = {point.value!r} of {GROUP}"
            problems += [f"{said}: {problem}; mend it, or uninstall it" for problem in error.problems]
    if problems:
        raise CatalogError(problems)
    return packages


def _roots(point: EntryPoint) -> list[Path]:
    module, _, attribute = point.value.partition(":")
    folders = [_told(module.strip(), attribute.strip())] if attribute else list(_of_package(module.strip()))
    holding = [folder.resolve() for folder in folders if holds_some(folder)]
    if not holding:
        raise CatalogError([f"{folder} {LACKS}" for folder in folders])
    return holding


def _of_package(name: str) -> Iterator[Path]:
    """Its folders, found without importing it: a run must not wait for what a package does at import."""
    top, *below = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise CatalogError([f"there is no package {top!r}"])
    if spec.submodule_search_locations is None:
        raise CatalogError([f"{top} is a module of one file; a package is wanted, or module:attribute with a path"])
    yield from (Path(place, *below) for place in spec.submodule_search_locations)


def _told(module: str, attribute: str) -> Path:
    """The path that an attribute holds."""
    try:
        value: object = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except Exception as error:  # it is another's code that runs here
        raise CatalogError([f"it cannot be had: {type(error).__name__}: {error}"]) from error
    if not isinstance(value, (str, Path)):
        raise CatalogError([f"it is {value!r}; the path of a folder is wanted"])
    return Path(value)
