"""The HTML page of a run, again from what it stored.

It is the page that the run itself left, without the table of tests; it opens from disk and asks nothing of a network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.page import page
from pytest_flagperf.results.runs import find_runs
from pytest_flagperf.stored import write_text
from pytest_flagperf.stored.layout import PAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_run(parser)
    parser.add_argument("--to", type=Path, metavar="FILE", help=f"where it goes (default: RUN/{PAGE})")


def run(arguments: argparse.Namespace) -> int:
    found = find_runs(arguments.run)
    if len(found) > 1:
        raise Problems([f"{arguments.run}: holds {len(found)} runs; name one of them"])
    to: Path = arguments.to or found[0] / PAGE
    if to.is_dir():
        to = to / PAGE
    write_text(to, page.alone(found[0], to))
    print(to)
    return 0
