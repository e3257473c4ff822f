"""The folders with suites and vendors: the roots of the settings, installed packages, and the wheel's own folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module, resources
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path, PurePath

from ..settings import LACKS, Settings, holds_some
from .catalog import Catalog
from .toml_reader import CatalogError

GROUP = "flagperf_roots"
_PACKAGE = "pytest_flagperf"
_SUITES = "suites"


def scan(settings: Settings, *, bundled_suites: bool = False) -> Catalog:
    """Return the suites and vendors of the roots, the installed packages and the wheel.

    The wheel's suites are in the catalog if a run names them, or if no others exist. All suites of a framework share an
    environment: a tree's own suites must not depend on what the wheel's suites require.
    """
    packages = installed()
    catalog = Catalog.scan([*map(Path, settings.roots), *packages], packages)
    root = bundled()
    if root is None:
        return catalog
    defaults = Catalog.scan([root], {root: f"pytest-flagperf {version('pytest-flagperf')}"})
    return catalog.over(defaults, with_suites=bundled_suites or not catalog.suites)


@cache
def bundled() -> Path | None:
    """Return the folder of the suites and vendors that came with the wheel; None in a checkout, which has its own."""
    folder = Path(str(resources.files(_PACKAGE))) / "bundled"
    return folder.resolve() if folder.is_dir() else None


def bundled_argument(argument: str, folder: Path) -> str | None:
    """Return a pytest argument such as ``suites/<model>`` with its path in the wheel; None if the path exists here."""
    path, separator, test = argument.partition("::")
    if PurePath(path).parts[:1] != (_SUITES,) or _exists(folder / path):
        return None
    root = bundled()
    return f"{root / path}{separator}{test}" if root is not None and _exists(root / path) else None


def bundled_name(file: Path) -> str | None:
    """Return the path of a file of the wheel as a checkout has it, ``suites/...``; None for other files."""
    root = bundled()
    return file.relative_to(root).as_posix() if root is not None and file.is_relative_to(root) else None


def installed() -> dict[Path, str]:
    """Return the folders that installed packages provide by entry points, each with its distribution.

    Only runs call this function: it may import these packages.
    """
    packages: dict[Path, str] = {}
    problems: list[str] = []
    for point in entry_points(group=GROUP):
        who = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        try:
            packages |= dict.fromkeys(_roots(point), who)
        except CatalogError as error:
            where = f"the installed {who}: entry point {point.name} = {point.value!r} of {GROUP}"
            problems += [f"{where}: {problem}; fix or uninstall the package" for problem in error.problems]
    if problems:
        raise CatalogError(problems)
    return packages


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path's raises for a name that is too long


def _roots(point: EntryPoint) -> list[Path]:
    module, _, attribute = point.value.partition(":")
    folders = [_attribute_path(module.strip(), attribute.strip())] if attribute else list(_of_package(module.strip()))
    roots = [folder.resolve() for folder in folders if holds_some(folder)]
    if not roots:
        raise CatalogError([f"{folder} {LACKS}" for folder in folders])
    return roots


def _of_package(name: str) -> Iterator[Path]:
    """Yield the folders of a package without importing it: an import may take long."""
    top, *below = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise CatalogError([f"package {top!r} not found"])
    if spec.submodule_search_locations is None:
        raise CatalogError([f"{top} is a single module; expected a package, or module:attribute with a path"])
    yield from (Path(place, *below) for place in spec.submodule_search_locations)


def _attribute_path(module: str, attribute: str) -> Path:
    """Import a module and return the path in its attribute."""
    try:
        value: object = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except Exception as error:  # any code of the package may run here
        raise CatalogError([f"cannot be imported: {type(error).__name__}: {error}"]) from error
    if not isinstance(value, (str, Path)):
        raise CatalogError([f"got {value!r}; expected the path of a folder"])
    return Path(value)
