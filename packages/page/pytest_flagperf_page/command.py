"""Write the HTML page of a stored run again, or an index page of all runs in a folder.

The page is the same as the run's own page, but without the table of tests. The index has the newest run of each case
with its trend over the earlier runs, and links to the pages of all runs; a run without a page gets one. The pages need
no network. The exit code is 1 if files of a run were changed after the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.results.tables.runs import find_runs
from pytest_flagperf.stored import digests, write_text
from pytest_flagperf.stored.layout import INDEX, PAGE

from . import page
from .index import standalone

EXAMPLE = "--all reports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help=f"{common.RUN}; with --all a folder of runs")
    parser.add_argument("--all", action="store_true", help="write an index page of all runs in the folder")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help=f"the file to write (default: RUN/{PAGE}; with --all RUN/{INDEX})"
    )


def run(arguments: argparse.Namespace) -> int:
    folder = arguments.run if arguments.all else common.find_run(arguments.run)
    name = INDEX if arguments.all else PAGE
    to: Path = arguments.to or folder / name
    if to.is_dir():
        to = to / name
    problems: list[str] = []
    if arguments.all:
        runs = find_runs(folder)
        for directory in runs:
            if not (directory / PAGE).exists():
                write_text(directory / PAGE, page.standalone(directory, directory / PAGE))
        text = standalone(folder, runs, to, problems)
    else:
        text = page.standalone(folder, to, problems)
    write_text(to, text)
    changed = [problem for problem in problems if digests.CHANGED in problem]
    print("\n".join([*changed, str(to)]))
    return 1 if changed else 0
