"""What the commands share: runs named on the command line, and places to write to."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from pytest_flagperf.problems import Problems
from pytest_flagperf.results import store
from pytest_flagperf.results.runs import find_runs
from pytest_flagperf.results.store import Run

RUN = "a run directory"
_NAME, _END = 17, 6
RUNS = "run directories, or folders of them"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help=RUN)


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help=RUNS)


def load_one(path: Path) -> Run:
    """The run that a path names; a folder of several is not one."""
    found = find_runs(path)
    if len(found) > 1:
        names = ", ".join(each.name for each in found[-5:])
        raise Problems([f"{path}: holds {len(found)} runs; name one of them (the last are {names})"])
    return _loaded(found[0])


def load_all(paths: Sequence[Path]) -> list[Run]:
    return [_loaded(path) for path in find_runs(paths)]


def name_of(run: Run) -> str:
    return run.directory.resolve().name


def names_of(runs: Sequence[Run]) -> list[str]:
    """By their directories; runs of one name, from several places, get a number."""
    names: list[str] = []
    for run in runs:
        name, number = name_of(run), 2
        while name in names:
            name, number = f"{name_of(run)}-{number}", number + 1
        names.append(name)
    return names


def short(name: str) -> str:
    """A run's name for the head of a column: its end tells runs apart."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 12]}...{name[-9:]}"


def heads(names: Sequence[str]) -> list[str]:
    """Names for columns side by side: without what long ones begin with alike."""
    columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    alike = min(sum(1 for _ in columns), min(map(len, names)) - _END)
    return [f"..{name[alike:]}" for name in names] if alike > _END else [short(name) for name in names]


def is_rate(unit: str) -> bool:
    return unit.endswith("/s") and unit != "B/s"


def width() -> int:
    return max(shutil.get_terminal_size().columns, 40)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory that appears under its name when all of it is there, and not at all otherwise."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Problems([f"{path}: is there already; name another place, or remove it first"])
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield made
        made.chmod(0o755)
        if path.is_dir():
            path.rmdir()
        made.rename(path)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _loaded(path: Path) -> Run:
    run = store.load_run(path)
    if not run.cases:
        raise Problems(run.problems or [f"{path}: holds no round that can be read"])
    return run
