"""What the modules of the plugin share: the keys of what they keep on pytest's objects, and the way to the terminal."""

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
BEGUN: pytest.StashKey[bool] = pytest.StashKey()
"""Set when it is known what will run: whether any of it takes a case."""
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
OUTCOMES: pytest.StashKey[list[Outcome]] = pytest.StashKey()


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def line_writer(config: pytest.Config) -> Callable[[str], None]:
    """Return what writes a line of text to the terminal: what hosts and tools write cannot control it."""
    from pytest_flagperf.printable import printable

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    write: Callable[[str], None] = print if reporter is None else reporter.write_line
    return lambda text: write(printable(text))
