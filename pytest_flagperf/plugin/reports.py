"""The report of an item: its verdicts, its cells in the HTML page, and what JUnit's readers see of it alone."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flagperf.stored.layout import PAGE

from .items import selected_of, takes_case
from .shared import OUTCOMES, RUN, VERDICTS
from .writers import record

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.selection import Selected

# As it goes on a report: what is attached travels with it from a parallel worker.
_ATTACHED = "flagperf_attached"
# What makes pytest write into a test's output, by the option's values, and what of a report it writes there.
_WRITTEN = {"system-out": "stdout", "out-err": "stdout", "all": "stdout", "log": "log"}


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
        _stand_alone(item, report, str(one.case))


def _judge_by_outcome(item: pytest.Item, report: pytest.TestReport, one: Selected) -> None:
    """Keep what was judged of the case; a test that gave no verdicts, a user's own, is one by how it ended."""
    from pytest_flagperf.results.verdicts import Verdict

    verdicts = item.stash.setdefault(VERDICTS, [])
    if all(verdict.ok for verdict in verdicts) and (report.failed or not verdicts):
        last = (report.longreprtext.strip().splitlines() or ["it passed"])[-1]
        verdicts.append(Verdict(item.name, not report.failed, report.outcome, "passed", f"{item.name}: {last}"))
    if OUTCOMES in item.stash or report.failed:
        record(item, report, one.case, verdicts)


def _attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put on the report what the HTML page shows; reports of parallel workers travel, so it is plain text."""
    from pytest_flagperf.report.page import html

    outcomes: list[Outcome] = item.stash.get(OUTCOMES, [])
    verdicts: list[Verdict] = item.stash.get(VERDICTS, [])
    report.flagperf = html.row_cells(outcomes, verdicts)  # type: ignore[attr-defined]


def _stand_alone(item: pytest.Item, report: pytest.TestReport, case: str) -> None:
    """Begin the message with the case, close the text with where the logs are, and attach them."""
    from pytest_flagperf.report.export.junit import attachments, logs

    run = item.config.stash[RUN]
    outcomes: list[Outcome] = item.stash.get(OUTCOMES, [])
    found = logs(run.directory.path, outcomes)
    _begin_with(report, case)
    if not found:
        return
    text: Any = report.longrepr
    if hasattr(text, "addsection"):
        text.addsection("logs", "\n".join(map(_short, found)))
    if not item.config.pluginmanager.has_plugin("junitxml"):
        return
    lines = attachments([*found, run.directory.path / PAGE], os.environ)
    written = _WRITTEN.get(item.config.getini("junit_logging"))
    if written is not None:
        # A second output beside pytest's own is more than GitLab can read.
        item.add_report_section("call", written, lines)
    else:
        setattr(report, _ATTACHED, lines)


def _begin_with(report: pytest.TestReport, case: str) -> None:
    """In the first line, which is all that many readers show, the case instead of the exception's name."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and crash.message.startswith("Failed: "):
        crash.message = f"{case}: {crash.message.removeprefix('Failed: ')}"


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class Attachments:
    """Registered only where there is a run; what it adds, pytest's own writer of JUnit's file writes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a failed item's logs in its output; once it is torn down the writer has closed it."""
        import xml.etree.ElementTree as ET

        from _pytest.junitxml import xml_key

        lines, xml = getattr(report, _ATTACHED, ""), self._config.stash.get(xml_key, None)
        if xml is None or not lines or report.when == "teardown":
            return
        output = ET.Element("system-out")
        output.text = lines
        xml.node_reporter(report).append(output)
