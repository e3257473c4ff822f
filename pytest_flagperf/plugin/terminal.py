"""What people see of a run in the terminal: the header, the progress, and the summary with the next steps."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flagperf.case import Case

from .items import all_cases, takes_case
from .shared import BEGUN, RUN, SESSION, is_worker, line_writer

if TYPE_CHECKING:
    from pytest_flagperf.report.terminal.summary import RunSummary
    from pytest_flagperf.running.run import Run


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Show which cases were selected, and which of them cannot run and why."""
    from pytest_flagperf.printable import printable

    run = config.stash.get(RUN, None)
    if run is None or is_worker(config) or config.get_verbosity() < 0:
        return []
    from pytest_flagperf.running.header import header

    absent = run.case_lookup.absent_in(item.nodeid for item in items)
    return list(map(printable, header(run, all_cases(items), absent)))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give the run a way to show life, past pytest's capture."""
    config = session.config
    config.stash[SESSION] = session
    run, reporter = config.stash.get(RUN, None), config.pluginmanager.get_plugin("terminalreporter")
    if run is None or reporter is None:
        return
    from pytest_flagperf.report.terminal.live import Live

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


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Close with the table, what failed and why, the paths of the reports, and the verdict in one line."""
    run = config.stash.get(RUN, None)
    if run is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.option.keyword:
        _show_hints(run, terminalreporter, config)
    if run is None or not config.stash.get(BEGUN, False) or run.settings.plan or run.settings.preflight:
        return
    from pytest_flagperf.report.terminal.summary import UNLIMITED
    from pytest_flagperf.running.finish import run_summary

    nodeids = [report.nodeid for found in terminalreporter.stats.values() for report in found if _is_report(report)]
    end = run_summary(run, nodeids)
    terminalreporter.write_sep("=", "flagperf")
    _add_summary(end, terminalreporter.write_line, os.environ)
    # Where a program reads, a line may be long.
    width = UNLIMITED if "CI" in os.environ else terminalreporter._tw.fullwidth
    write = line_writer(config)
    end = replace(end, next_steps=tuple(_next_steps(run, end, config, os.environ)))
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


def _next_steps(run: Run, end: RunSummary, config: pytest.Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines to show after a run without any option of ours, which no program reads."""
    if not end.cases or not run.settings.all_default or "CI" in environment or config.get_verbosity() < 0:
        return
    page = next((path for path in end.reports if path.endswith(".html")), None)
    folders = config.known_args_namespace.file_or_dir
    model = Case.parse(end.cases[0].case).model
    yield "next:"
    if page:
        yield f"  open {page} in a browser"
    yield f"  {shlex.join([_program('pytest'), *folders, '-k', model])}  # one model"
    yield f"  {_program('flagperf')} new-vendor NAME --hw=CHIP  # a folder for another vendor"


def _program(name: str) -> str:
    """The program as a shell in the current directory finds it."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found) == own:
        return name
    return os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)


def _add_summary(end: RunSummary, write: Callable[[str], None], environ: Mapping[str, str]) -> None:
    """On GitHub, add the run to the summary of the step."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") != "true" or not path:
        return
    from pytest_flagperf.report.export import github

    try:
        with Path(path).open("ab") as file:  # other programs of the step have written there
            file.write(github.summary(end, github.SUMMARY_BYTES - file.tell()).encode())
    except OSError as error:
        write(f"flagperf: GITHUB_STEP_SUMMARY={path} cannot be written: {error.strerror}")
