"""Functions that the commands share: load the given runs, and name them."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.problems import Problems
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import find_runs
from pytest_flagperf.results.tables.store import StoredRun

RUN = "a run directory"
RUNS = "run directories, or folders of them"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help=RUN)


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help=RUNS)


def load_run(path: Path) -> StoredRun:
    """Load the run in a folder; raise Problems where the folder contains several runs, or files that were changed."""
    return _unchanged(_loaded(find_run(path)))


def load_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """Load the runs in folders; raise Problems where files of them were changed."""
    return [_unchanged(run) for run in load_also_changed(paths)]


def load_also_changed(paths: Sequence[Path]) -> list[StoredRun]:
    """Load the runs in folders, also runs with changed files, which their ``changed`` lists."""
    return [_loaded(path) for path in find_runs(paths)]


def find_run(path: Path) -> Path:
    """Return the run directory in a folder; raise Problems where the folder contains several."""
    folders = find_runs(path)
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders[-5:])
        raise Problems([f"{path}: contains {len(folders)} runs; pass one of them (the last runs are {names})"])
    return folders[0]


def run_name(run: StoredRun) -> str:
    return run.directory.resolve().name


def unique_names(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names of the runs' directories; a name that occurs again gets a number."""
    names: list[str] = []
    for run in runs:
        name, number = run_name(run), 2
        while name in names:
            name, number = f"{run_name(run)}-{number}", number + 1
        names.append(name)
    return names


def width() -> int:
    return max(shutil.get_terminal_size().columns, 40)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _loaded(path: Path) -> StoredRun:
    run = store.load_run(path)
    if not run.cases:
        raise Problems(run.problems or [f"{path}: contains no readable round"])
    return run


def _unchanged(run: StoredRun) -> StoredRun:
    if run.changed:
        raise Problems(run.changed)
    return run
