"""What --plan and --preflight print instead of running tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .shared import line_writer

if TYPE_CHECKING:
    import pytest

    from pytest_flagperf.running.run import Run


def preview(session: pytest.Session, run: Run) -> None:
    """Print the plans or the findings on the hosts."""
    from pytest_flagperf.engines import is_local
    from pytest_flagperf.report.terminal.live import silent
    from pytest_flagperf.selection import runnable

    write = line_writer(session.config)
    chosen = runnable(run.requested)
    if run.settings.plan:
        in_full = len(chosen) == 1 or session.config.get_verbosity() > 0
        for line in run.table(chosen) if len(chosen) > 1 else ():
            write(line)
        for selected in chosen if in_full else ():
            write(run.describe(selected))
        if chosen and not in_full:
            write("flagperf: -v prints each plan in full")
        for line in run.engine.prepare([*map(run.plan, chosen)], silent()) if is_local(run.engine) else ():
            write(f"flagperf: {line}")
        if session.config.get_verbosity() < 0:  # otherwise the header lists them
            for case in run.requested:
                if case.unsupported:
                    write(f"cannot run: {case.case}: {case.unsupported}")
        if not chosen:
            session.testscollected = 0  # pytest then reports that no tests were collected, as for a run
    if run.settings.preflight:
        from pytest_flagperf.engines.agents.preflight import lines
        from pytest_flagperf.results.figures.units import count
        from pytest_flagperf.stored.live_record import LiveRecord

        run.live.start(LiveRecord())  # writes the line of the minute while large data are checked
        findings = run.preflight(chosen)
        for line in lines(findings):
            write(line)
        if number := run.without_data(chosen):
            write(f"flagperf: data: not checked for {count(number, 'case')}: pass --data-dir=DIR or --case CASE=DIR")
        session.testsfailed += sum(finding.fatal for finding in findings)
