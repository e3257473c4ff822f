"""The end of a run: late logs, results.json, accepted baselines, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pytest_flagperf import __version__
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.tables import store
from pytest_flagperf.selection import Absent, Selected
from pytest_flagperf.stored import WriteError
from pytest_flagperf.stored.round_dir import case_folders, has_rounds

from . import controller, judging, memory_end
from .directory import relative
from .run import Run


def finish(run: Run, command: Sequence[str], exit_status: int, *, had_workers: bool = False) -> None:
    """Write results.json and results.csv with the rounds of all workers; ``command`` must not contain secrets."""
    directory = run.directory.path
    if not directory.is_dir() or not has_rounds(directory):
        return
    if had_workers:
        run.rounds.end_orphaned_rounds(run.selection.cases)
    run.notes += run.rounds.fetch_late_logs()
    results = run.records.write_results(_info(run, command, exit_status))
    expected = dict.fromkeys(
        source for selected in run.selection.cases for source in judging.expected_of(run.settings, str(selected.case))
    )
    run.notes += judging.unknown_verdicts(expected, results.cases)
    with run.records.collecting_write_errors():
        run.notes += _finish_engine(run, results)
    if judging.would_change(results, Path(run.settings.baselines)):
        run.notes.append(f"flagperf accept {relative(directory)} accepts the figures of this run as baselines")


def _finish_engine(run: Run, results: store.StoredRun) -> list[str]:
    """Return the engine's lines for the summary, or what is wrong with the engine of a plugin."""
    try:
        return run.engine.finish(results)
    except Problems as error:
        return list(error.problems)


def _info(run: Run, command: Sequence[str], exit_status: int) -> store.RunInfo:
    have_results = {folder.name for folder in case_folders(run.directory.path)}
    return store.RunInfo(
        command=tuple(command),
        versions=_versions(),
        started_ms=run.started_ms,
        ended_ms=time.time_ns() // 1_000_000,
        exit_status=exit_status,
        selected=tuple(str(requested.case) for requested in run.requested),
        not_run=tuple(not_run(run, have_results)),
        controller={**run.controller_before, **controller.own_cost()},
    )


def not_run(run: Run, folders: Collection[str]) -> list[str]:
    """Return a line for each selected case whose folder is not among those with results, with the reason."""
    errors = {str(selected.case): str(error) for (selected, _), error in run.rounds.not_recorded.items()}

    def reason(one: Selected | Absent) -> str:
        too_large = memory_end.not_started(run, one) if isinstance(one, Selected) else None
        return one.unsupported or errors.get(str(one.case)) or too_large or "not started"

    return [f"{one.case}: {reason(one)}" for one in run.requested if one.case.folder not in folders]


def write_errors(errors: Iterable[WriteError], directory: Path) -> list[str]:
    """Return a line for each folder and reason, with the names of all files that could not be written."""
    names: dict[tuple[Path, str], list[str]] = {}
    for error in errors:
        path = Path(error.filename)
        folder = directory if path.is_relative_to(directory) else path.parent
        names.setdefault((folder, str(error.strerror)), []).append(str(path.relative_to(folder)))
    return [
        f"cannot write {', '.join(dict.fromkeys(files))} in {folder}: {reason}"
        for (folder, reason), files in names.items()
    ]


def _versions() -> dict[str, str]:
    """Return the versions of Python, pytest, pytest-flagperf and its plugins."""
    from importlib.metadata import version

    from pytest_flagperf.hooks import installed_plugins

    own = {"pytest-flagperf": __version__, "pytest": version("pytest")}
    return {"python": sys.version.split()[0], **own, **{one.package: one.version for one in installed_plugins()}}
