"""The terminal output of a run: the header, the progress, and the summary with the next steps."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.stored.layout import JUNIT, PAGE, REPORTS

from .items import requested_cases, takes_case
from .shared import RUN, SESSION, is_worker, line_writer

if TYPE_CHECKING:
    from pytest_flagperf.report.terminal.summary import RunSummary
    from pytest_flagperf.running.run import Run


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Show the selected cases, and the reason for each case that cannot run."""
    from pytest_flagperf.printable import printable

    run = config.stash.get(RUN, None)
    if run is None or is_worker(config) or config.get_verbosity() < 0:
        return []
    from pytest_flagperf.running.header import header

    return list(map(printable, header(run, requested_cases(items))))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Set up the progress output of the run, which bypasses pytest's capture."""
    config = session.config
    config.stash[SESSION] = session
    run, reporter = config.stash.get(RUN, None), config.pluginmanager.get_plugin("terminalreporter")
    if run is None or reporter is None:
        return
    from pytest_flagperf.report.terminal.live import CLEAR, PlainLines, TerminalLines, rank_logs

    if is_worker(config):
        reporter = None  # the output of a worker's reporter is discarded; its stderr is the controller's
    terminal = os.fdopen(os.dup(2 if reporter is None else 1), "w", encoding="utf-8", errors="replace")
    config.add_cleanup(terminal.close)

    column: int | None = None  # where pytest's own line ends, while the progress is on the line below
    ended: object = None  # pytest's line and where it ended, when a permanent line was last written below

    def write(text: str) -> None:
        nonlocal column, ended
        line = reporter and reporter.currentfspath and (reporter.currentfspath, reporter._tw.width_of_current_line)
        if column is not None:
            if text == CLEAR:
                text, column = f"{CLEAR}\x1b[A\x1b[{column + 1}G", None  # up, and to the column
        elif reporter is not None and line and line != ended:
            if text.startswith(CLEAR):
                column = line[1]
            elif reporter.showfspath:
                ended = line
            else:
                reporter.currentfspath = None  # with -v pytest then names its test again
            text = f"\n{text}"
        with suppress(OSError):  # a closed terminal must not fail a round; pytest reports it
            terminal.write(text)
            terminal.flush()

    verbosity, not_captured = config.get_verbosity(), config.getoption("capture", "no") == "no"
    if verbosity < 0:
        return
    name = getattr(config, "workerinput", {}).get("workerid")
    width = reporter._tw.fullwidth if reporter is not None else 80
    lines = TerminalLines(write, name, width=width) if terminal.isatty() else PlainLines(write, name)
    run.output = (lines.subscriber,)
    if reporter is not None and (verbosity > 0 or not_captured):
        run.output += (rank_logs(lines.line, records=verbosity > 1 or not_captured),)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the table, the failures with their reasons, the paths of the reports, and the verdict in one line."""
    run = config.stash.get(RUN, None)
    # The header has the reasons of cases that cannot run.
    if run is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not run.requested:
        _show_hints(run, terminalreporter, config)
    if run is None or is_worker(config) or not run.requested or run.settings.starts_nothing:
        return
    from pytest_flagperf.report.terminal.summary import UNLIMITED

    summary = _run_summary(run)
    terminalreporter.write_sep("=", "flagperf")
    _write_github_summary(summary, terminalreporter.write_line, os.environ)
    # Programs, such as CI systems, can read long lines.
    width = UNLIMITED if "CI" in os.environ else terminalreporter._tw.fullwidth
    summary = replace(summary, next_steps=tuple(_next_steps(run, summary, config, os.environ)))
    for line in summary.lines(width):
        line_writer(config)(line)


def _run_summary(run: Run) -> RunSummary:
    """Return the summary of the run's results, with a reason for each selected case that has none."""
    from pytest_flagperf.case import folder
    from pytest_flagperf.report.terminal.summary import summarize_run
    from pytest_flagperf.results.tables.store import StoredRun
    from pytest_flagperf.running.directory import relative
    from pytest_flagperf.running.finish import not_run, write_errors

    directory = run.directory.path
    results = run.records.results or StoredRun(directory, None, ())
    reports = [str(relative(directory / name)) for name in REPORTS if (directory / name).is_file()]
    notes = [*run.notes, *write_errors(run.records.write_errors, directory)]
    not_started = not_run(run, [folder(case.case) for case in results.cases])
    summary = summarize_run(results, not_started, notes, reports if run.records.results else ())
    if summary.interrupted:
        summary = replace(summary, notes=(*summary.notes, f"--resume={relative(directory)} continues this run"))
    return summary


class ReportLines:
    """Leave out what pytest and pytest-html print about files that the summary lists; registered only for a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._run = config.stash[RUN]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        folder, write_sep = self._run.directory.path.resolve(), terminalreporter.write_sep
        listed = (str(folder / JUNIT), (folder / PAGE).as_uri()) if self._run.requested else ()

        def write_other(sep: str, title: str | None = None, *arguments: Any, **options: Any) -> None:
            if not (title or "").endswith(listed):
                write_sep(sep, title, *arguments, **options)

        terminalreporter.write_sep = write_other
        try:
            yield
        finally:
            del terminalreporter.write_sep


def _show_hints(run: Run, terminalreporter: Any, config: pytest.Config) -> None:
    """Print hints if no case was selected: for -k similar names, or the available keywords; else what to pass."""
    from pytest_flagperf.selection import hints, keywords

    write = line_writer(config)
    if not config.option.keyword:
        if run.settings.resume:
            cases = ", ".join(run.settings.case)
            write(f"flagperf: no test here is of a case of the run to continue: {cases}; pass the folder of its suite")
        elif not run.settings.all_default and not terminalreporter.stats.get("deselected"):
            write("flagperf: no suite here; pass the folder of the suites, as in: pytest suites --plan")
        return
    lines = hints(config.option.keyword, run.selection.cases, run.catalog)
    for line in lines:
        write(f"flagperf: {line}")
    if not lines and any(map(takes_case, terminalreporter.stats.get("deselected", ()))):
        words = ", ".join(keywords(run.selection.cases))
        write(f"flagperf: -k: no test matches {config.option.keyword!r}; available keywords: {words}")


def _next_steps(run: Run, summary: RunSummary, config: pytest.Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield suggestions after an interactive run without any option of pytest-flagperf."""
    if not summary.cases or not run.settings.all_default or "CI" in environment or config.get_verbosity() < 0:
        return
    page = next((path for path in summary.reports if path.endswith(".html")), None)
    folders = config.known_args_namespace.file_or_dir
    model = Case.parse(summary.cases[0].case).model
    yield "next:"
    if page:
        yield f"  open {page} in a browser"
    yield f"  {shlex.join([_program('pytest'), *folders, '-k', model])}  # one model"
    yield f"  {_program('flagperf')} new-vendor NAME --hw=CHIP  # add a vendor"


def _program(name: str) -> str:
    """Return the command that starts the program from the current directory."""
    own = Path(sys.executable).parent / name
    if Path(shutil.which(name) or "") == own:
        return name
    return os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)


def _write_github_summary(summary: RunSummary, write: Callable[[str], None], environ: Mapping[str, str]) -> None:
    """On GitHub Actions, append the run to the summary of the step."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") != "true" or not path:
        return
    from pytest_flagperf.report.export import github

    try:
        with Path(path).open("ab") as file:  # other programs of the step may have written to it
            file.write(github.summary(summary, github.SUMMARY_BYTES - file.tell()).encode())
    except OSError as error:
        write(f"flagperf: cannot write GITHUB_STEP_SUMMARY={path}: {error.strerror}")
