"""Handle failed writes: each is reported, and no other report or case is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import EINVAL
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .pytest_html import expanded
from .shared import RUN

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.run import Run

# The attribute of a report with the verdicts that were not written; pytest-xdist sends it from the workers.
_UNRECORDED = "flagperf_unrecorded"
# The option with the path of the report, by the module of the plugin that writes it at the end of the session.
_PATH_OPTIONS = {
    "_pytest.junitxml": "xmlpath",
    "pytest_html.report": "htmlpath",
    "pytest_html.selfcontained_report": "htmlpath",
}


def record(item: pytest.Item, report: pytest.TestReport, case: Case, verdicts: list[Verdict]) -> None:
    """Store the verdicts of a test; if that fails, the test fails and its report carries the verdicts."""
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.stored import WriteError, to_json_types

    try:
        item.config.stash[RUN].records.record(case, item.name, verdicts)
    except WriteError as error:
        if not report.failed:
            report.outcome, report.longrepr = "failed", str(error)
        if all(verdict.ok for verdict in verdicts):
            verdicts.append(Verdict("record", False, "not written", "written", str(error)))
        unrecorded = {"case": str(case), "test": item.name, "verdicts": to_json_types(verdicts)}
        setattr(report, _UNRECORDED, unrecorded)


class Writers:
    """The handling of failed writes in the process that finishes the run, which is not a parallel worker."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdicts of a test that were not stored."""
        from pytest_flagperf.case import Case
        from pytest_flagperf.results.verdicts import Verdict
        from pytest_flagperf.stored import type_check

        unrecorded: Mapping[str, Any] | None = getattr(report, _UNRECORDED, None)
        if unrecorded is not None:
            verdicts = [type_check.typed(Verdict, verdict, "unrecorded") for verdict in unrecorded["verdicts"]]
            self._run.records.keep(Case.parse(unrecorded["case"]), unrecorded["test"], verdicts)


def guard(session: pytest.Session, run: Run) -> None:
    """Catch write errors of each report, because an exception at the end of the session would stop other plugins."""
    for hook in session.config.hook.pytest_sessionfinish.get_hookimpls():
        option = _PATH_OPTIONS.get(type(hook.plugin).__module__)
        path = expanded(session.config.getoption(option, None)) if option else None
        if path is not None:
            # pluggy cannot wrap the hook of a single plugin.
            object.__setattr__(hook, "function", _guarded(hook.function, path.absolute(), run))


def _guarded(write: Callable[..., object], path: Path, run: Run) -> Callable[..., None]:
    @wraps(write)
    def guarded(*arguments: object) -> None:
        from pytest_flagperf.stored import WriteError, writing

        try:
            with writing(path):
                write(*arguments)
        except (WriteError, ValueError) as error:  # a ValueError: for example a time that TZ shifts by a day
            if isinstance(error, ValueError):
                error = WriteError(EINVAL, str(error), str(path))
            run.records.write_errors.append(error)
            if path.parent == run.directory.path.absolute():
                path.unlink(missing_ok=True)  # remove an incomplete report

    return guarded
