"""The end of a run: late logs, results.json, accepted baselines, and the closing summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.report.terminal.summary import Closing, closing
from pytest_flagperf.results import store
from pytest_flagperf.stored import WriteError, layout
from pytest_flagperf.stored.round import has_rounds

from . import controller, judging
from .directory import relative
from .run import Run


def finish(run: Run, command: Sequence[str], exit_status: int, had_workers: bool = False) -> None:
    """Write results.json and results.csv, of all workers' rounds. ``command`` is stored as it is."""
    directory = run.directory.path
    if not directory.is_dir() or not has_rounds(directory):
        return
    if had_workers:
        run.rounds.end_what_workers_left()
    run.notes += run.rounds.fetch_late_logs()
    results = run.records.write_results(_info(run, command, exit_status))
    expected = dict.fromkeys(
        source for one in run.selection.cases for source in judging.expected_of(run.settings, one.vendor, str(one.case))
    )
    run.notes += judging.never_judged(expected, results.cases)
    if run.settings.accept_baseline:
        with run.records.noting_refusals():
            run.notes += judging.told_of(*judging.accept(results, Path(run.settings.baselines)))


def _info(run: Run, command: Sequence[str], exit_status: int) -> store.RunInfo:
    return store.RunInfo(
        command=tuple(command),
        versions=_versions(),
        started_ms=run.started_ms,
        ended_ms=time.time_ns() // 1_000_000,
        exit_status=exit_status,
        selected=tuple(str(one.case) for one in run.selection.cases if not one.unsupported),
        unsupported=tuple(f"{one.case}: {one.unsupported}" for one in run.selection.unsupported),
        controller={**run.before, **controller.own_cost()},
    )


def closing_summary(run: Run, nodeids: Sequence[str]) -> Closing:
    """What is told at the end, of what was begun and of the tests that were reported."""
    directory = run.directory.path
    results = run.records.results or store.Run(directory, None, ())
    reports = [str(relative(directory / name)) for name in layout.REPORTS if (directory / name).is_file()]
    notes = [*run.notes, *_refusals(run.records.refused, directory)]
    end = closing(results, _not_run(run, nodeids, results), notes, reports if run.records.results else ())
    if end.interrupted:
        end = replace(end, notes=(*end.notes, f"--resume={relative(directory)} goes on with this run"))
    return end


def _not_run(run: Run, nodeids: Sequence[str], results: store.Run) -> list[str]:
    """Each case that left no result, and why."""
    left = {case.case for case in results.cases}
    asked = [*run.begun, *(one for one in run.asked.chosen(nodeids) if one.unsupported)]
    why = {one: str(error) for (one, _), error in run.rounds.not_recorded.items()}
    lines = [
        f"{one.case}: {one.unsupported or why.get(one) or 'it was not begun'}"
        for one in asked
        if str(one.case) not in left
    ]
    return lines + [f"{one.case}: {one.unsupported}" for one in run.asked.absent_in(nodeids)]


def _refusals(errors: Iterable[WriteError], directory: Path) -> list[str]:
    """A sentence for each reason, with the names of all files of the run's directory; others by their folders."""
    names: dict[tuple[Path, str], list[str]] = {}
    for error in errors:
        path = Path(error.filename)
        folder = directory if path.is_relative_to(directory) else path.parent
        names.setdefault((folder, str(error.strerror)), []).append(str(path.relative_to(folder)))
    return [f"cannot write {', '.join(dict.fromkeys(its))} in {folder}: {why}" for (folder, why), its in names.items()]


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], **{name: version(name) for name in ("pytest-flagperf", "pytest")}}
