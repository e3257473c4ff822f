"""The folders with suites and vendors: the roots of the settings, installed packages, and the wheel's own folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path, PurePath

from .. import __version__
from ..settings import LACKS, Settings, find_root, holds_some
from .catalog import Catalog
from .toml_reader import CatalogError

_PACKAGE = "pytest_flagperf"
_SUITES = "suites"


def scan(
    settings: Settings, packages: Mapping[Path, str], cwd: Path | None = None, *, bundled_suites: bool = False
) -> Catalog:
    """Return the suites and vendors of the roots, the wheel, and the folders of installed packages (with their names).

    Roots without a vendor use those of the tree of ``cwd``: the suite may lie outside the checkout that pytest runs in.
    The wheel's suites are in the catalog if a run names them, or if no others exist. All suites of a framework share an
    environment: a tree's own suites must not depend on what the wheel's suites require.
    """
    problems = [
        f"the installed {package}: flagperf_roots(): {folder} {LACKS}; fix or uninstall the package"
        for folder, package in packages.items()
        if not holds_some(folder)
    ]
    if problems:
        raise CatalogError(problems)
    catalog = Catalog.scan([*map(Path, settings.roots), *packages], packages)
    if not catalog.vendors and cwd is not None and (tree := find_root(cwd)) is not None:
        catalog = catalog.over(Catalog.scan([tree]), with_suites=False)
    root = bundled()
    if root is None:
        return catalog
    defaults = Catalog.scan([root], {root: f"pytest-flagperf {__version__}"})
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


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path's raises for a name that is too long
