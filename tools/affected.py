"""List the vendors' folders that a change of a standard case affects: their results may be outdated."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from pytest_flagperf.catalog import Catalog, Suite
from pytest_flagperf.commands import tree
from pytest_flagperf.problems import Problems
from tools import run_tool

_NOT_THE_CASE = ("reference", "tests", "_small.py")
"""Folders and files of a suite that no vendor's folder depends on; the small scale is the same for all vendors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    since = "compare with the commit where this branch left REV, as in --since=origin/main (default: HEAD)"
    parser.add_argument("--since", metavar="REV", default="HEAD", help=since)
    tree.add_roots(parser)


def run(arguments: argparse.Namespace) -> int:
    root = tree.root().resolve()
    catalog, changed = tree.catalog(root, arguments.roots), changed_files(root, arguments.since)
    lines = [line for suite in catalog.suites.values() for line in _affected(catalog, suite, root, changed)]
    print("\n".join(lines or [f"no standard case changed since {arguments.since}"]))
    return 0


def changed_files(root: Path, since: str) -> list[PurePath]:
    """Return the files below the root that differ from the commit where the branch left ``since``, with new files."""
    base = _git(root, "merge-base", "--end-of-options", since, "HEAD")[0].strip()
    differing = _git(root, "diff", "-z", "--name-only", "--no-renames", "--relative", base, "--", ".")
    return [PurePath(name) for name in (*differing, *_git(root, "ls-files", "-z", "--others", "--exclude-standard"))]


def _affected(catalog: Catalog, suite: Suite, root: Path, changed: Sequence[PurePath]) -> Iterator[str]:
    own, *shared = (path.resolve() for path in suite.code)
    of_suite = [name for name in changed if _is_part_of(own, root / name) or _is_any_part(shared, root / name)]
    if not of_suite:
        return
    folders = [catalog.case_folder(suite, vendor) for vendor in catalog.vendors.values()]
    existing = sorted(_shown(folder, root) for folder in folders if folder.is_dir())
    yield f"{_shown(suite.path, root)}: changed: {', '.join(sorted(map(str, of_suite)))}"
    yield from (f"  affects {name}" for name in existing or ["no folder of a vendor"])


def _is_part_of(suite: Path, file: Path) -> bool:
    """Return True if the file belongs to the suite and vendors' results depend on it."""
    if suite not in file.parents or file.suffix == ".md":
        return False
    return not set(_NOT_THE_CASE).intersection(file.relative_to(suite).parts)


def _is_any_part(shared: Sequence[Path], file: Path) -> bool:
    return any(_is_part_of(folder, file) or folder == file for folder in shared)


def _shown(path: Path, root: Path) -> str:
    path, root = path.resolve(), root.resolve()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _git(root: Path, *words: str) -> list[str]:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Problems([f"git cannot be run: {error.strerror}"]) from error
    if done.returncode:
        raise Problems([f"git {words[0]} failed in {root}: {done.stderr.strip() or 'no common commit found'}"])
    return list(filter(None, done.stdout.split("\0")))


if __name__ == "__main__":
    sys.exit(run_tool(sys.modules[__name__]))
