"""What people see of a run: the header, the progress, the reports, the summary."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from . import github, writers
from .command import public
from .failures import stand_alone
from .items import all_cases, selected_of, takes_case
from .keys import BEGUN, OUTCOMES, RUN, SESSION, VERDICTS
from .next_steps import next_steps
from .opening import is_worker
from .page import leave_in_run
from .screen import line_writer

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.run import Run
    from pytest_flagperf.selection import Selected


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Show which cases were selected, and which of them cannot run and why."""
    from pytest_flagperf.printable import printable

    run = config.stash.get(RUN, None)
    if run is None or is_worker(config) or config.get_verbosity() < 0:
        return []
    absent = run.asked.absent_in(item.nodeid for item in items)
    return list(map(printable, run.asked.header(all_cases(items), absent)))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give the run a way to show life, past pytest's capture."""
    from pytest_flagperf.report.terminal.live import Live

    config = session.config
    config.stash[SESSION] = session
    run, reporter = config.stash.get(RUN, None), config.pluginmanager.get_plugin("terminalreporter")
    if run is None or reporter is None:
        return
    if is_worker(config):
        # It writes to nobody.
        reporter = None
    # A worker has no terminal of its own; its stderr is the controller's.
    terminal = os.fdopen(os.dup(2 if reporter is None else 1), "w", encoding="utf-8", errors="replace")
    config.add_cleanup(terminal.close)

    def write(text: str) -> None:
        if reporter is not None and reporter.currentfspath:
            # What pytest says next of the test begins a line again.
            reporter.currentfspath = None
            text = f"\n{text}"
        with suppress(OSError):  # a closed terminal must not fail a round; pytest's own output reports it
            terminal.write(text)
            terminal.flush()

    verbosity = config.get_verbosity()
    run.rounds.watch = Live(
        write,
        width=reporter._tw.fullwidth if reporter is not None else 80,
        live=terminal.isatty(),
        quiet=verbosity < 0 or (reporter is None and not terminal.isatty()),
        follow=reporter is not None and (verbosity > 0 or config.getoption("capture", "no") == "no"),
        name=getattr(config, "workerinput", {}).get("workerid"),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach to the report what the tables and the HTML page show of the item."""
    report = yield
    if takes_case(item):
        _be_strict(item, report)
    one = selected_of(item)
    if one is not None:
        _complete(item, call, report, one)
    return report


def _be_strict(item: pytest.Item, report: pytest.TestReport) -> None:
    """With --strict a case that is skipped has failed."""
    if report.skipped and item.config.getini("strict") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"--strict makes this skip an error: {reason.removeprefix('Skipped: ')}"


def _complete(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, one: Selected) -> None:
    if call.when == "call" or report.failed:
        _judge_by_outcome(item, report, one)
        _attach(item, report)
    if report.failed:
        stand_alone(item, report, str(one.case))


def _judge_by_outcome(item: pytest.Item, report: pytest.TestReport, one: Selected) -> None:
    """Keep what was judged of the case; a test that gave no verdicts, a user's own, is one by how it ended."""
    from pytest_flagperf.results.verdicts import Verdict

    verdicts = item.stash.setdefault(VERDICTS, [])
    if all(verdict.ok for verdict in verdicts) and (report.failed or not verdicts):
        last = (report.longreprtext.strip().splitlines() or ["it passed"])[-1]
        verdicts.append(Verdict(item.name, not report.failed, report.outcome, "passed", f"{item.name}: {last}"))
    if OUTCOMES in item.stash or report.failed:
        writers.record(item, report, one.case, verdicts)


def _attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put on the report what the HTML page shows; reports of parallel workers travel, so it is plain text."""
    from pytest_flagperf.report.page import html

    outcomes: list[Outcome] = item.stash.get(OUTCOMES, [])
    verdicts: list[Verdict] = item.stash.get(VERDICTS, [])
    report.flagperf = html.row_cells(outcomes, verdicts)  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the run's results when the last worker is gone; a run that ran nothing is not green."""
    run = session.config.stash.get(RUN, None)
    if run is None or is_worker(session.config):
        return
    from pytest_flagperf.running.finish import finish

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    had_workers = session.config.pluginmanager.has_plugin("dsession")
    finish(run, public(session.config.invocation_params.args), int(exitstatus), had_workers)
    leave_in_run(run, session.config)
    took_cases = session.config.stash.get(BEGUN, False)
    if exitstatus == pytest.ExitCode.OK and took_cases and reporter is not None and _only_skipped(reporter.stats):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _only_skipped(stats: Mapping[str, Any]) -> bool:
    ran = any(stats.get(word) for word in ("passed", "failed", "error", "xfailed", "xpassed"))
    return bool(stats.get("skipped")) and not ran


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Close with the table, what failed and why, the paths of the reports, and the verdict in one line."""
    from pytest_flagperf.report.terminal.summary import EVERYTHING

    run = config.stash.get(RUN, None)
    if run is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.option.keyword:
        _show_hints(run, terminalreporter, config)
    if run is None or not config.stash.get(BEGUN, False) or run.settings.plan or run.settings.preflight:
        return
    from pytest_flagperf.running.finish import closing_summary

    nodeids = [report.nodeid for found in terminalreporter.stats.values() for report in found if _is_report(report)]
    end = closing_summary(run, nodeids)
    terminalreporter.write_sep("=", "flagperf")
    github.add_summary(end, terminalreporter.write_line, os.environ)
    # Where a program reads, a line may be long.
    width = EVERYTHING if "CI" in os.environ else terminalreporter._tw.fullwidth
    write = line_writer(config)
    end = replace(end, next_steps=tuple(next_steps(run, end, config, os.environ)))
    for line in end.lines(width):
        write(line)


def _show_hints(run: Run, terminalreporter: Any, config: pytest.Config) -> None:
    """After a -k that selected nothing: near names, or the words that select cases."""
    from pytest_flagperf.selection import hints, keywords

    write = line_writer(config)
    lines = hints(config.option.keyword, run.selection.cases, run.catalog)
    for line in lines:
        write(f"flagperf: {line}")
    if not lines and any(map(takes_case, terminalreporter.stats.get("deselected", ()))):
        words = ", ".join(keywords(run.selection.cases))
        write(f"flagperf: -k: no test matches {config.option.keyword!r}; its words can be {words}")


def _is_report(found: object) -> bool:
    return isinstance(found, pytest.TestReport)
