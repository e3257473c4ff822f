"""The plugin's way to the terminal: what hosts and tools write cannot control it."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def line_writer(config: pytest.Config) -> Callable[[str], None]:
    """Return what writes a line of text to the terminal, with hidden characters escaped."""
    from pytest_flagperf.printable import printable

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    write: Callable[[str], None] = print if reporter is None else reporter.write_line
    return lambda text: write(printable(text))
