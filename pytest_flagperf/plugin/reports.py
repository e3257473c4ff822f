"""The report of a test: its verdicts, its cell in the HTML page, and its logs in the JUnit file."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flagperf.progress import note
from pytest_flagperf.report.case_cell import case_cell
from pytest_flagperf.stored.layout import PAGE

from .items import selected_of, takes_case
from .shared import OUTCOMES, RUN, VERDICTS
from .writers import record

if TYPE_CHECKING:
    from pytest_flagperf.report.export.junit import OncePerCase
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.selection import Selected

# The attribute of a report with the attached lines; pytest-xdist sends it from the workers.
_ATTACHED = "flagperf_attached"
# The section of a report that pytest writes into the JUnit file, by the value of junit_logging.
_LOGGED_SECTIONS = {"system-out": "stdout", "out-err": "stdout", "all": "stdout", "log": "log"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the content of the tables and the HTML page to the report."""
    report = yield
    if (run := item.config.stash.get(RUN, None)) is not None:
        # The time of a test is not that of the other runs which used its devices before.
        report.duration, run.waited_s = max(0.0, report.duration - run.waited_s), 0.0
    if takes_case(item):
        _fail_skip_if_strict(item, report)
    selected = selected_of(item)
    if selected is not None:
        _complete(item, call, report, selected)
    return report


def _fail_skip_if_strict(item: pytest.Item, report: pytest.TestReport) -> None:
    """With --strict, turn the skip of a case into a failure."""
    if report.skipped and item.config.getini("strict") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"--strict makes this skip an error: {reason.removeprefix('Skipped: ')}"


def _complete(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, selected: Selected) -> None:
    if call.when == "call" or report.failed:
        _record_verdicts(item, report, selected)
        _record_live(item, report, selected)
        # The cell of the HTML page as plain text, which pytest-xdist can send.
        cases = [outcome.case for outcome in item.stash.get(OUTCOMES, [])[:1]]
        report.flagperf = case_cell(*cases)  # type: ignore[attr-defined]
    if report.failed:
        _add_case_and_logs(item, report, str(selected.case))


def _record_verdicts(item: pytest.Item, report: pytest.TestReport, selected: Selected) -> None:
    """Record the verdicts of the test; the outcome of a test without verdicts, such as a user's, becomes a verdict."""
    from pytest_flagperf.results.verdicts import Verdict

    verdicts = item.stash.setdefault(VERDICTS, [])
    if all(verdict.ok for verdict in verdicts) and (report.failed or not verdicts):
        last = (report.longreprtext.strip().splitlines() or ["it passed"])[-1]
        verdicts.append(Verdict(item.name, not report.failed, report.outcome, "passed", f"{item.name}: {last}"))
    if OUTCOMES in item.stash or report.failed:
        record(item, report, selected.case, verdicts)


def _record_live(item: pytest.Item, report: pytest.TestReport, selected: Selected) -> None:
    """Add the test and its failed verdicts to the live record."""
    verdicts: list[Verdict] = item.stash.get(VERDICTS, [])
    sentences = [verdict.sentence for verdict in verdicts if not verdict.ok]
    outcome = "expected" if report.skipped and hasattr(report, "wasxfail") else report.outcome
    note("test", case=str(selected.case), test=item.name, outcome=outcome, sentences=sentences)


def _add_case_and_logs(item: pytest.Item, report: pytest.TestReport, case: str) -> None:
    """Add the case to the first line of the message, and the paths of the logs to its end and to the JUnit file."""
    from pytest_flagperf.report.export.junit import attachments, logs
    from pytest_flagperf.running.directory import relative

    run = item.config.stash[RUN]
    outcomes: list[Outcome] = item.stash.get(OUTCOMES, [])
    paths = logs(run.directory.path, outcomes)
    _begin_with(report, case)
    if not paths:
        return
    text: Any = report.longrepr
    if hasattr(text, "addsection"):
        text.addsection("logs", "\n".join(str(relative(path)) for path in paths))
    if not item.config.pluginmanager.has_plugin("junitxml"):
        return
    lines = attachments([*paths, run.directory.path / PAGE], os.environ)
    section = _LOGGED_SECTIONS.get(item.config.getini("junit_logging"))
    if section is not None:
        # GitLab reads only one system-out element, so the lines go into that of pytest.
        item.add_report_section("call", section, lines)
    else:
        setattr(report, _ATTACHED, lines)


def _begin_with(report: pytest.TestReport, case: str) -> None:
    """Replace the name of the exception in the first line, which many tools show alone, by the case."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and crash.message.startswith("Failed: "):
        crash.message = f"{case}: {crash.message.removeprefix('Failed: ')}"


class JUnitFile:
    """Complete the JUnit file of pytest: properties once per case, and the logs; registered only if there is a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @cached_property
    def _once(self) -> OncePerCase:
        # Loads the modules that read results, which a run loads while the hosts are checked.
        from pytest_flagperf.report.export.junit import OncePerCase

        return OncePerCase()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """Hide the properties that another test of the case has, while the JUnit writer reads them at teardown."""
        from _pytest.junitxml import xml_key

        given = report.user_properties
        if report.when == "teardown" and self._config.stash.get(xml_key, None) is not None:
            report.user_properties = self._once.filter(report.nodeid, given)
        try:
            yield
        finally:
            report.user_properties = given


class Attachments:
    """Add the paths of logs to the JUnit file of pytest; registered only if there is a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the logs of a failed test to its output, before the JUnit writer closes it at teardown."""
        import xml.etree.ElementTree as ET

        from _pytest.junitxml import xml_key

        lines, xml = getattr(report, _ATTACHED, ""), self._config.stash.get(xml_key, None)
        if xml is None or not lines or report.when == "teardown":
            return
        output = ET.Element("system-out")
        output.text = lines
        xml.node_reporter(report).append(output)
