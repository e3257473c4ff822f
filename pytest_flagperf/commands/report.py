"""Write the HTML page of a stored run again.

The page is the same as the run's own page, but without the table of tests. It needs no network. The exit code is 1 if
files of the run were changed after the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.report.page import page
from pytest_flagperf.stored import digests, write_text
from pytest_flagperf.stored.layout import PAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_run(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help=f"the file to write (default: RUN/{PAGE})")


def run(arguments: argparse.Namespace) -> int:
    folder = common.find_run(arguments.run)
    to: Path = arguments.to or folder / PAGE
    if to.is_dir():
        to = to / PAGE
    problems: list[str] = []
    write_text(to, page.standalone(folder, to, problems))
    changed = [problem for problem in problems if digests.CHANGED in problem]
    print("\n".join([*changed, str(to)]))
    return 1 if changed else 0
