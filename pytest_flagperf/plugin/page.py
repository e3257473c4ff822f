"""What the HTML page shows of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver import addresses
from pytest_flagperf.stored.layout import PAGE

if TYPE_CHECKING:
    from pytest_flagperf.running.run import Run


class Page:
    """Registered only where there is a run: other pages stay as they are."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_metadata(self, metadata: dict[str, object]) -> None:
        """Hide passwords where pytest-metadata is configured after this plugin."""
        _hide_passwords(metadata)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Name the page after what it shows; a file's name says little in a browser's tab."""
        report.title = f"flagperf {self._run.directory.path.name}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, postfix: list[str], session: pytest.Session) -> None:
        """Add what the run's directory tells; by now the results are written, those of all workers."""
        from pytest_flagperf.report.page import page

        if self._run.records.results is None:
            return
        place = expanded(session.config.getoption("htmlpath"))
        assert place is not None
        postfix.append(page.extension(self._run.directory.path, place))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add the main figures' columns."""
        from pytest_flagperf.report.page import html

        cells[2:2] = html.header_cells()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Fill the main figures' columns."""
        from pytest_flagperf.report.page import html

        cells[2:2] = getattr(report, "flagperf", None) or html.row_cells([], [])


def clean_metadata(config: pytest.Config) -> None:
    """Hide passwords where pytest-metadata has been configured before this plugin."""
    if config.pluginmanager.has_plugin("metadata"):
        from pytest_metadata.plugin import metadata_key

        _hide_passwords(config.stash.get(metadata_key, {}))


def _hide_passwords(metadata: dict[str, object]) -> None:
    """In the addresses that a CI system has in its environment variables, as in Jenkins' GIT_URL."""
    metadata |= {name: addresses.redacted_text(text) for name, text in metadata.items() if isinstance(text, str)}


def leave_in_run(run: Run, config: pytest.Config) -> None:
    """Make the page of the run's directory where pytest-html makes none there: it is off, or writes elsewhere."""
    own = run.directory.path / PAGE
    made = expanded(config.getoption("htmlpath", None)) if config.pluginmanager.has_plugin("html") else None
    if run.records.results is None or (made is not None and made.resolve() == own.resolve()):
        return
    from pytest_flagperf import stored
    from pytest_flagperf.report.page import page

    try:
        stored.write_text(own, page.alone(run.directory.path, own))
    except stored.WriteError as error:
        run.records.write_errors.append(error)


def expanded(path: str | None) -> Path | None:
    """Where pytest and pytest-html write what a user named."""
    return Path(os.path.expandvars(path)).expanduser() if path else None
