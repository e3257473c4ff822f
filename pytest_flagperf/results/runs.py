"""Which run directories are meant by paths."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.round import has_rounds


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Run directories, and those in folders of runs, each once; an error that names every path that is neither."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: dict[Path, Path] = {}
    problems = [] if given else ["no run was named"]
    for path in map(Path, given):
        runs = [path] if is_run(path) else _below(path)
        for run in runs:
            found.setdefault(run.resolve(), run)
        if not runs:
            problems.append(_why_not(path))
    if problems:
        raise FormatError("\n".join(problems))
    return list(found.values())


def is_run(path: Path) -> bool:
    return has_rounds(path)


def _below(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if is_run(each)) if path.is_dir() else []


def _why_not(path: Path) -> str:
    if path.is_dir():
        return f"{path}: is no run and holds none: a run directory has <case>/round<i>/plan.json"
    if path.exists():
        return f"{path}: is a file; a run directory is wanted"
    names = [each.name for each in path.parent.iterdir() if each.is_dir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, names, n=3)
    return f"{path}: no such directory" + (f"; did you mean {' or '.join(near)}?" if near else "")


def newest_first(reports: Path) -> list[Path]:
    """The runs of a folder by their names, ``run<timestamp>[-n]``: a copied folder's mtime says nothing."""
    return sorted(reports.glob("run*"), key=_age, reverse=True)


def _age(run_dir: Path) -> tuple[str, int]:
    stamp, _, extra = run_dir.name.partition("-")
    return stamp, int(extra) if extra.isdecimal() else 0
