"""The page of a run, and the command ``flagperf report``: that page again, and the index page of a folder of runs."""

from __future__ import annotations

from pathlib import Path

from pytest_flagperf.hooks import Command, Page, hookimpl
from pytest_flagperf.stored.layout import PAGE


@hookimpl
def flagperf_commands() -> list[Command]:
    from . import command  # its modules load slowly, as those of the page

    return [Command("report", command)]


@hookimpl
def flagperf_pages() -> list[Page]:
    from . import page

    return [Page(Path(PAGE).stem, page.extension, page.standalone)]
