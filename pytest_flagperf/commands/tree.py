"""What the commands share: the tree that they are about, and what is found from there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.catalog import Catalog, scan
from pytest_flagperf.settings import find_root, read_settings


def add_roots(parser: argparse.ArgumentParser) -> None:
    told = "another folder that holds vendors/ or suites/, as in a run; may be given again"
    parser.add_argument("--roots", metavar="DIR", action="append", help=told)


def root() -> Path:
    """The tree that one stands in, else where one stands."""
    return find_root(Path.cwd()) or Path.cwd()


def catalog(of: Path | None = None, roots: Sequence[str] | None = None) -> Catalog:
    """All suites and vendors that a run there would find, whichever it names."""
    return scan(read_settings({"roots": roots}, of or root(), Path.cwd()), bundled_suites=True)
