"""What the commands share: the tree that they are about, and what is found from there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.catalog import Catalog, bundled, scan
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import find_root, read_settings


def add_roots(parser: argparse.ArgumentParser) -> None:
    told = "another folder that holds vendors/ or suites/, as in a run; may be given again"
    parser.add_argument("--roots", metavar="DIR", action="append", help=told)


def vendors_root(to: Path | None) -> Path:
    """Where a vendor's folder is made: ``to``, else this tree; with the suites of the wheel any folder is a tree."""
    found = to or find_root(Path.cwd()) or (Path.cwd() if bundled() else None)
    if found is None:
        raise Problems(
            [f"{Path.cwd()}: neither this folder nor one above has suites/ or vendors/; name a folder with --to"]
        )
    return found


def root() -> Path:
    """The tree that one stands in, else where one stands."""
    return find_root(Path.cwd()) or Path.cwd()


def catalog(of: Path | None = None, roots: Sequence[str] | None = None) -> Catalog:
    """All suites and vendors that a run there would find, whichever it names."""
    return scan(read_settings({"roots": roots}, of or root(), Path.cwd()), bundled_suites=True)
