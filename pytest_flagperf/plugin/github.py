"""A run on GitHub: the summary that it shows of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flagperf.report.terminal.summary import Closing


def add_summary(end: Closing, write: Callable[[str], None], environ: Mapping[str, str]) -> None:
    """On GitHub, add the run to the summary of the step."""
    path = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") != "true" or not path:
        return
    from pytest_flagperf.report.export import github

    try:
        with Path(path).open("ab") as file:  # other programs of the step have written there
            file.write(github.summary(end, github.SUMMARY_BYTES - file.tell()).encode())
    except OSError as error:
        write(f"flagperf: GITHUB_STEP_SUMMARY={path} cannot be written: {error.strerror}")
