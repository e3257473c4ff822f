"""Extend the page of pytest-html with the results of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver import addresses
from pytest_flagperf.stored.layout import PAGE

if TYPE_CHECKING:
    from pytest_flagperf.running.run import Run


class PageHooks:
    """The hooks of pytest-html; registered only if there is a run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_metadata(self, metadata: dict[str, object]) -> None:
        """Hide passwords if pytest-metadata is configured after this plugin."""
        _hide_passwords(metadata)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Set the title of the page to the name of the run."""
        report.title = f"flagperf {self._run.directory.path.name}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, postfix: list[str], session: pytest.Session) -> None:
        """Add the results of the run, which are written by now, also those of all workers."""
        from pytest_flagperf.report.page import page

        if self._run.records.results is None:
            return
        path = expanded(session.config.getoption("htmlpath"))
        assert path is not None
        postfix.append(page.extension(self._run.directory.path, path))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add the column of the case, whose section has the figures."""
        from pytest_flagperf.report.page import html

        cells.insert(2, html.CASE_HEADER)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Fill the column of the case."""
        from pytest_flagperf.report.page import html

        cells.insert(2, getattr(report, "flagperf", None) or html.case_cell())


def clean_metadata(config: pytest.Config) -> None:
    """Hide passwords if pytest-metadata has been configured before this plugin."""
    if config.pluginmanager.has_plugin("metadata"):
        from pytest_metadata.plugin import metadata_key

        _hide_passwords(config.stash.get(metadata_key, {}))


def _hide_passwords(metadata: dict[str, object]) -> None:
    """Hide passwords in addresses, which CI systems set in environment variables such as Jenkins' GIT_URL."""
    metadata |= {name: addresses.redacted_text(text) for name, text in metadata.items() if isinstance(text, str)}


def write_run_page(run: Run, config: pytest.Config) -> None:
    """Write the page into the run directory if pytest-html does not: it is disabled, or writes to another path."""
    own = run.directory.path / PAGE
    html_path = expanded(config.getoption("htmlpath", None)) if config.pluginmanager.has_plugin("html") else None
    if run.records.results is None or (html_path is not None and html_path.resolve() == own.resolve()):
        return
    from pytest_flagperf import stored
    from pytest_flagperf.report.page import page

    try:
        stored.write_text(own, page.standalone(run.directory.path, own))
    except stored.WriteError as error:
        run.records.write_errors.append(error)


def expanded(path: str | None) -> Path | None:
    """Return the path that pytest and pytest-html write for a path that a user passed."""
    return Path(os.path.expandvars(path)).expanduser() if path else None
