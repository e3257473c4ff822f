"""Save a run's measurements as baselines for later runs; refuse cases that failed or have validity warnings.

A baseline is one file per case. Commit these files, so that a review shows each change. Bounds in an existing baseline
are kept. The figures are first derived again from the logs, as flagperf verify does. The exit code is 1 if a case was
refused.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import common, tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.verification import verify
from pytest_flagperf.running.judging import accept, accepted_lines
from pytest_flagperf.settings import read_settings

EXAMPLE = "reports/run20261121061129"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_run(parser)
    parser.add_argument("--note", metavar="TEXT", default="", help="the reason, stored in the baseline")
    parser.add_argument(
        "--baselines", type=Path, metavar="DIR", help="folder for the baselines (default: the tree's reports/baselines)"
    )
    parser.add_argument("--new-bounds", action="store_true", help="replace edited bounds by those of a new baseline")


def run(arguments: argparse.Namespace) -> int:
    folder = arguments.baselines or Path(read_settings({}, tree.root()).baselines)
    loaded = common.load_run(arguments.run)
    if differences := verify(loaded.directory)[1]:
        raise Problems(differences)
    written, refused = accept(loaded, folder, note=arguments.note, keep_bounds=not arguments.new_bounds)
    print("\n".join(accepted_lines(written, refused)))
    return 1 if refused else 0
