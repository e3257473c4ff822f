"""Find the run directories in given paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pytest_flagperf.problems import near
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round_dir import has_rounds


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return each run directory once, also those in folders of runs; raise FormatError with all invalid paths."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    by_real_path: dict[Path, Path] = {}
    problems = [] if given else ["no run specified"]
    for path in map(Path, given):
        runs = [path] if has_rounds(path) else sorted(filter(has_rounds, path.iterdir())) if path.is_dir() else []
        for run in runs:
            by_real_path.setdefault(run.resolve(), run)
        if not runs:
            problems.append(_problem(path))
    if problems:
        raise FormatError("\n".join(problems))
    return list(by_real_path.values())


def _problem(path: Path) -> str:
    if path.is_dir():
        return f"{path}: not a run, and contains no runs; {expected_run(path)}"
    if path.exists():
        return f"{path}: is a file; {expected_run(path)}"
    names = [folder.name for folder in path.parent.iterdir() if folder.is_dir()] if path.parent.is_dir() else []
    return f"{path}: no such directory{near(path.name, names)}"


def expected_run(path: Path) -> str:
    """Return what is expected instead of a path: the run that it is in, else the newest run in it or beside it."""
    places = [one for one in (path, path.parent) if os.path.isdir(one)]  # noqa: PTH112 - also a name that is too long
    runs = filter(has_rounds, [*places[-1:], *(run for place in places for run in newest_first(place))])
    return "expected a run directory, such as " + str(next(runs, "reports/run20261121063131"))


def newest_first(reports: Path) -> list[Path]:
    """The runs of a folder, sorted by name (``run<timestamp>[-n]``), because copying changes a folder's mtime."""
    return sorted(reports.glob("run*"), key=age, reverse=True)


def age(run_dir: Path) -> tuple[str, int]:
    """Return the key that sorts runs by their names, the oldest first."""
    stamp, _, extra = run_dir.name.partition("-")
    return stamp, int(extra) if extra.isdecimal() else 0
