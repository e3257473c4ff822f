"""The lines of the header: which cases were selected, and which of them cannot run and why."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flagperf.results.units import count
from pytest_flagperf.selection import Absent, Selected
from pytest_flagperf.settings import Settings

from . import judging
from .directory import relative
from .plans import runtime_of
from .run import Run


def header(run: Run, cases: Sequence[Selected], absent: Sequence[Absent] = ()) -> list[str]:
    """Return the lines for the cases of the tests, and for those that no suite here trains."""
    if not cases and not absent:
        return []
    hosts = len(run.engine.hosts)
    ready = [one for one in cases if not one.unsupported]
    elsewhere = [one for one in ready if one.case.nnodes > hosts]
    title = _title(cases, len(ready) - len(elsewhere), len(absent))
    lines = [f"flagperf: {title}; reports: {relative(run.directory.path)}", *_throughput_only(run.settings, ready)]
    unsupported: list[Selected | Absent] = [*(one for one in cases if one.unsupported), *absent]
    lines += [f"  cannot run: {one.case}: {one.unsupported}" for one in unsupported]
    lines += [f"  cannot run here: {one.case}: needs {one.case.nnodes} hosts, {hosts} available" for one in elsewhere]
    lines += _notes(run, ready)
    lines += judging.those_with_baselines(run.settings, [str(one.case) for one in ready])
    if run.settings.resume:
        lines.append(f"  going on with {relative(run.directory.path)}")
    lines += run.engine.header()
    return lines + [f"  note: {note}" for note in run.selection.notes]


def _title(cases: Sequence[Selected], able: int, absent: int) -> str:
    kinds = {f"{one.vendor.name} {one.case.hardware} at {one.scale} scale" for one in cases}
    number = len(cases) + absent
    can_run = "" if able == number else f", {able} can run"
    of_what = f": {', '.join(sorted(kinds))}" if kinds else ""
    return f"{count(number, 'case')} selected{can_run}{of_what}"


def _throughput_only(settings: Settings, ready: Sequence[Selected]) -> list[str]:
    if settings.synthetic or settings.throughput_only:
        why = "synthetic data" if settings.synthetic else "--throughput-only"
        return [f"  throughput only: every case ({why}); no convergence is shown"]
    return [
        f"  throughput only: {one.case} (--no-throughput-only trains it to its target)"
        for one in ready
        if one.throughput_only
    ]


def _notes(run: Run, ready: Sequence[Selected]) -> list[str]:
    notes = [note for one in ready for note in run.engine.notes(one.case, one.vendor, runtime_of(run.settings, one))]
    return [f"  note: {note}" for note in dict.fromkeys(notes)]
