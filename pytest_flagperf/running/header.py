"""The header of a run: the selected cases, and the reason for each case that cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_flagperf.results.units import count
from pytest_flagperf.selection import Absent, Selected
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored.layout import baseline_file

from .directory import relative
from .plans import runtime_of
from .run import Run


def header(run: Run, cases: Sequence[Selected], absent: Sequence[Absent] = ()) -> list[str]:
    """Return the lines of the header; ``absent`` are the cases without a suite."""
    if not cases and not absent:
        return []
    hosts = run.engine.host_count
    ready = [selected for selected in cases if not selected.unsupported]
    too_large = [selected for selected in ready if hosts is not None and selected.case.nnodes > hosts]
    title = _title(cases, len(ready) - len(too_large), len(absent))
    lines = [f"flagperf: {title}; reports: {relative(run.directory.path)}", *_throughput_only(run.settings, ready)]
    unsupported: list[Selected | Absent] = [*(selected for selected in cases if selected.unsupported), *absent]
    lines += [f"  cannot run: {case.case}: {case.unsupported}" for case in unsupported]
    lines += [
        f"  cannot run here: {selected.case}: needs {selected.case.nnodes} hosts, {hosts} available"
        for selected in too_large
    ]
    lines += _notes(run, ready)
    lines += _baselines(Path(run.settings.baselines), [str(selected.case) for selected in ready])
    if run.settings.resume:
        lines.append(f"  continuing {relative(run.directory.path)}")
    lines += run.engine.header()
    return lines + [f"  note: {note}" for note in run.selection.notes]


def _title(cases: Sequence[Selected], runnable: int, absent: int) -> str:
    kinds = {f"{case.vendor.name} {case.case.hardware} at {case.scale} scale" for case in cases}
    number = len(cases) + absent
    can_run = "" if runnable == number else f", {runnable} can run"
    listed = f": {', '.join(sorted(kinds))}" if kinds else ""
    return f"{count(number, 'case')} selected{can_run}{listed}"


def _throughput_only(settings: Settings, ready: Sequence[Selected]) -> list[str]:
    if settings.synthetic or settings.throughput_only:
        reason = "synthetic data" if settings.synthetic else "--throughput-only"
        return [f"  throughput only: every case ({reason}); convergence is not tested"]
    return [
        f"  throughput only: {selected.case} (--no-throughput-only trains it to its target)"
        for selected in ready
        if selected.throughput_only
    ]


def _baselines(folder: Path, cases: Sequence[str]) -> list[str]:
    """Return the line about baselines, so that users notice a wrong folder; empty without baselines."""
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    number = sum(baseline_file(case) in files for case in cases) if files else 0
    return [f"  baselines: {number} of {count(len(cases), 'case')}: {folder}"] if number else []


def _notes(run: Run, ready: Sequence[Selected]) -> list[str]:
    notes = [
        note
        for selected in ready
        for note in run.engine.notes(selected.case, selected.vendor, runtime_of(run.settings, selected))
    ]
    return [f"  note: {note}" for note in dict.fromkeys(notes)]
