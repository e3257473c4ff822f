"""What the report of a failed item says where it stands alone: in JUnit's readers, in a mail, in a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .keys import OUTCOMES, RUN

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome

# As it goes on a report: what is attached travels with it from a parallel worker.
_ATTACHED = "flagperf_attached"
# What makes pytest write into a test's output, by the option's values, and what of a report it writes there.
_WRITTEN = {"system-out": "stdout", "out-err": "stdout", "all": "stdout", "log": "log"}


def stand_alone(item: pytest.Item, report: pytest.TestReport, case: str) -> None:
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
    lines = attachments([*found, run.directory.path / "report.html"], os.environ)
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
