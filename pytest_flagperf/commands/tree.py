"""The current tree of suites and vendors, for all commands that read it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.catalog import Catalog, scan
from pytest_flagperf.settings import find_root, read_settings


def add_roots(parser: argparse.ArgumentParser) -> None:
    roots = "another folder with vendors/ or suites/, as for pytest; may be repeated"
    parser.add_argument("--roots", metavar="DIR", action="append", help=roots)


def root() -> Path:
    """Return the root of the current tree; the current folder if it is not in a tree."""
    return find_root(Path.cwd()) or Path.cwd()


def catalog(of: Path | None = None, roots: Sequence[str] | None = None) -> Catalog:
    """Return all suites and vendors that a run in the tree can use."""
    from pytest_flagperf.hooks.roots import installed_roots  # most commands need no plugin, and pluggy takes time

    settings = read_settings({"roots": roots}, of or root(), Path.cwd())
    return scan(settings, installed_roots(), Path.cwd(), bundled_suites=True)
