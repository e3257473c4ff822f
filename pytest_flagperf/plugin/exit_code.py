"""The exit code of a session, where it is not the one of pytest itself: 1, 4 or 5, which keep pytest's meanings."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import pytest

from .shared import RUN

_SUCCESS = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Fail a session whose results are incomplete; a session that only skipped its cases exits as without tests.

    Registered only in the process that finishes a run.
    """
    yield
    run = session.config.stash[RUN]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if run.records.is_incomplete and session.exitstatus in _SUCCESS:  # not written, or not readable
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif session.exitstatus == pytest.ExitCode.OK and run.requested and reporter and _only_skipped(reporter.stats):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _only_skipped(stats: Mapping[str, Any]) -> bool:
    ran = any(stats.get(outcome) for outcome in ("passed", "failed", "error", "xfailed", "xpassed"))
    return bool(stats.get("skipped")) and not ran


def exit_with(error: pytest.UsageError) -> NoReturn:
    """End the session with a user's error where pytest-xdist would report it as an internal one."""
    pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
