"""Reports and verdicts that a disk refuses: each is named, and no other report or case is lost with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .page import expanded
from .shared import RUN

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.run import Run

# As it goes on a report: what could not be recorded travels with it from a parallel worker.
_UNRECORDED = "flagperf_unrecorded"
# The modules whose plugins write a file at the end of the session, by the option with the file's name.
_OPTIONS = {
    "_pytest.junitxml": "xmlpath",
    "pytest_html.report": "htmlpath",
    "pytest_html.selfcontained_report": "htmlpath",
}


def record(item: pytest.Item, report: pytest.TestReport, case: Case, verdicts: list[Verdict]) -> None:
    """Store what a test judged; a test whose verdicts cannot be stored fails, and its report carries them."""
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.stored import WriteError, sayable

    try:
        item.config.stash[RUN].records.record(case, item.name, verdicts)
    except WriteError as error:
        if not report.failed:
            report.outcome, report.longrepr = "failed", str(error)
        if all(verdict.ok for verdict in verdicts):
            verdicts.append(Verdict("record", False, "not written", "written", str(error)))
        plain = {"case": str(case), "test": item.name, "verdicts": sayable(verdicts)}
        setattr(report, _UNRECORDED, plain)


class Writers:
    """Registered where the run is finished, not on parallel workers."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdicts of a test that could not be stored."""
        from pytest_flagperf.case import Case
        from pytest_flagperf.results.verdicts import Verdict

        found: Mapping[str, Any] | None = getattr(report, _UNRECORDED, None)
        if found is not None:
            verdicts = [Verdict.from_json(verdict) for verdict in found["verdicts"]]
            self._run.records.keep(Case.parse(found["case"]), found["test"], verdicts)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Fail a session of which something could not be written, or not be read at its end."""
        yield
        green = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._run.records.is_incomplete and session.exitstatus in green:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def guard(session: pytest.Session, run: Run) -> None:
    """Let each report be written on its own: a plugin that raises at the session's end ends the other plugins too."""
    for hook in session.config.hook.pytest_sessionfinish.get_hookimpls():
        option = _OPTIONS.get(type(hook.plugin).__module__)
        path = expanded(session.config.getoption(option, None)) if option else None
        if path is not None:
            # pluggy has no hook around one plugin's hook.
            object.__setattr__(hook, "function", _guarded(hook.function, path.absolute(), run))


def _guarded(write: Callable[..., object], path: Path, run: Run) -> Callable[..., None]:
    @wraps(write)
    def guarded(*arguments: object) -> None:
        from pytest_flagperf.stored import WriteError, writing

        try:
            with writing(path):
                write(*arguments)
        except WriteError as error:
            run.records.write_errors.append(error)
            if path.parent == run.directory.path.absolute():
                path.unlink(missing_ok=True)  # a part of a report is no report

    return guarded
