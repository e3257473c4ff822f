"""Stash keys and functions shared by the modules of the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.running.run import Run

RUN: pytest.StashKey[Run] = pytest.StashKey()
SESSION: pytest.StashKey[pytest.Session] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
OUTCOMES: pytest.StashKey[list[Outcome]] = pytest.StashKey()


def is_worker(config: pytest.Config) -> bool:
    """Return True in a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def line_writer(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that writes a line to the terminal, without control characters of hosts and tools."""
    from pytest_flagperf.printable import printable

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    write: Callable[[str], None] = print if reporter is None else reporter.write_line
    return lambda text: write(printable(text))
