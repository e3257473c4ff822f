"""The header of a run: the selected cases, and the reason for each case that cannot run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_flagperf.case import Case
from pytest_flagperf.problems import some
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.selection import Absent, Selected, runnable
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored.layout import baseline_file

from .auto_runtime import AUTO
from .directory import relative
from .run import Run, runtime_of


def header(run: Run, requested: Sequence[Selected | Absent]) -> list[str]:
    """Return the lines of the header."""
    if not requested:
        return []
    hosts = run.engine.host_count
    ready = runnable(requested)
    too_large = [selected for selected in ready if hosts is not None and selected.case.nnodes > hosts]
    title = _title(requested, len(ready) - len(too_large))
    lines = [f"flagperf: {title}; reports: {relative(run.directory.path)}", *_throughput_only(run.settings, ready)]
    lines += [f"  {line}" for line in cannot_run(requested)]
    reasons = ((selected.case, f"needs {selected.case.nnodes} hosts, {hosts} available") for selected in too_large)
    lines += [f"  cannot run here: {line}" for line in _by_reason(reasons)]
    lines += _notes(run, ready)
    lines += _baselines(Path(run.settings.baselines), [str(selected.case) for selected in ready])
    if run.settings.resume:
        lines.append(f"  continuing {relative(run.directory.path)}")
    lines += run.engine.header()
    return lines + [f"  note: {note}" for note in (*run.selection.notes, *run.notes)]


def cannot_run(requested: Sequence[Selected | Absent]) -> list[str]:
    """Return a line for each reason why cases cannot run anywhere, with the first of the cases."""
    return [f"cannot run: {line}" for line in _by_reason((one.case, one.unsupported or "") for one in requested)]


def _by_reason(reasons: Iterable[tuple[Case, str]]) -> list[str]:
    cases: dict[str, list[str]] = {}
    for case, reason in reasons:
        cases.setdefault(reason, []).append(str(case))
    return [f"{some(names)}: {reason}" for reason, names in cases.items() if reason]


def _title(requested: Sequence[Selected | Absent], ready: int) -> str:
    present = [case for case in requested if isinstance(case, Selected)]
    kinds = {f"{case.vendor.name} {case.case.hardware} at {case.scale} scale" for case in present}
    can_run = "" if ready == len(requested) else f", {ready} can run"
    listed = f": {', '.join(sorted(kinds))}" if kinds else ""
    return f"{count(len(requested), 'case')} selected{can_run}{listed}"


def _throughput_only(settings: Settings, ready: Sequence[Selected]) -> list[str]:
    if settings.synthetic or settings.throughput_only:
        reason = "synthetic data" if settings.synthetic else "--throughput-only"
        cases = "every case" if all(selected.throughput_only for selected in ready) else "every training"
        return [f"  throughput only: {cases} ({reason}); convergence is not tested"]
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
        note for selected in ready for note in run.engine.notes(selected.case, selected.vendor, _runtime(run, selected))
    ]
    return [f"  note: {note}" for note in dict.fromkeys(notes)]


def _runtime(run: Run, selected: Selected) -> str:
    """Return the runtime; before the cases are planned, auto counts as venv."""
    name = runtime_of(run.settings, selected)
    return "venv" if name == AUTO else name
