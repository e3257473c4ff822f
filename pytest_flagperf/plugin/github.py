"""A run on GitHub: what it shows of a step beside the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flagperf.report.closing import Closing
    from pytest_flagperf.run import Run


def tell(
    end: Closing, run: Run, root: Path, nodeids: Iterable[str], write: Callable[[str], None], environ: Mapping[str, str]
) -> None:
    """Annotations into the log, a summary into the step's file; elsewhere nothing."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    from pytest_flagperf.report import github

    workspace = Path(environ.get("GITHUB_WORKSPACE") or root)
    for line in github.commands(end, _files(run, root, workspace, nodeids)):
        write(line)
    path = environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            _append(Path(path), lambda room: github.summary(end, room), github.SUMMARY_BYTES)
        except OSError as error:
            write(f"flagperf: GITHUB_STEP_SUMMARY={path} cannot be written: {error.strerror}")


def _append(path: Path, summary: Callable[[int], str], most: int) -> None:
    """Other programs of the step have written there, and their words count."""
    with path.open("ab") as file:
        file.write(summary(most - file.tell()).encode())


def _files(run: Run, root: Path, workspace: Path, nodeids: Iterable[str]) -> Mapping[str, str]:
    """The test file of each case, as GitHub knows it: from the top of the checked-out repository."""
    found = {}
    for nodeid in nodeids:
        path = (root / nodeid.partition("::")[0]).resolve()
        if path.is_relative_to(workspace.resolve()):
            relative = str(path.relative_to(workspace.resolve()))
            found.update({str(one.case): relative for one in run.chosen([nodeid])})
    return found
