"""Write the pages of a run, and extend the page of pytest-html with them."""

from __future__ import annotations

import os
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flagperf_driver import addresses
from pytest_flagperf.hooks.plugins import Plugin, guard, named
from pytest_flagperf.hooks.specs import Page
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.case_cell import CASE_HEADER, case_cell

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
        if self._run.records.results is None:
            return
        path, folder = expanded(session.config.getoption("htmlpath")), self._run.directory.path
        assert path is not None
        for plugin, page in pages():
            try:
                postfix.append(guard(plugin, "extension()", partial(page.extension, folder, path)))
            except Problems as error:
                postfix.append(f"<p>{escape(str(error))}</p>")

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add the column of the case, whose section has the figures."""
        cells.insert(2, CASE_HEADER)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Fill the column of the case."""
        cells.insert(2, getattr(report, "flagperf", None) or case_cell())


def pages() -> list[tuple[Plugin, Page]]:
    """Return all pages of a run; ours is that of packages/page."""
    return [*named("flagperf_pages", Page).values()]


def clean_metadata(config: pytest.Config) -> None:
    """Hide passwords if pytest-metadata has been configured before this plugin."""
    if config.pluginmanager.has_plugin("metadata"):
        from pytest_metadata.plugin import metadata_key

        _hide_passwords(config.stash.get(metadata_key, {}))


def _hide_passwords(metadata: dict[str, object]) -> None:
    """Hide passwords in addresses, which CI systems set in environment variables such as Jenkins' GIT_URL."""
    metadata |= {name: addresses.redacted_text(text) for name, text in metadata.items() if isinstance(text, str)}


def write_pages(run: Run, config: pytest.Config) -> None:
    """Write the pages into the run directory; pytest-html may write one of them itself."""
    if run.records.results is None:
        return
    from pytest_flagperf import stored

    html_path = expanded(config.getoption("htmlpath", None)) if config.pluginmanager.has_plugin("html") else None
    for plugin, page in pages():
        own = run.directory.path / f"{page.name}.html"
        if html_path is not None and html_path.resolve() == own.resolve():
            continue
        try:
            stored.write_text(own, guard(plugin, "standalone()", partial(page.standalone, own.parent, own)))
        except stored.WriteError as error:
            run.records.write_errors.append(error)
        except Problems as error:
            run.notes += error.problems


def expanded(path: str | None) -> Path | None:
    """Return the path that pytest and pytest-html write for a path that a user passed."""
    return Path(os.path.expandvars(path)).expanduser() if path else None
