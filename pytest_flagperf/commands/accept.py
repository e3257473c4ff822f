"""Make a run's figures the baselines of later runs; rounds that failed or have validity warnings are refused.

A baseline is one file per case, made to be committed: its change is what a review sees. Bounds that stand in one
already are kept. Exit code 1 if a case was refused.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.commands.source_tree import tree
from pytest_flagperf.running.judging import accept, accepted_lines
from pytest_flagperf.settings import read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_run(parser)
    parser.add_argument("--note", metavar="TEXT", default="", help="why, for those who read the file later")
    parser.add_argument(
        "--baselines", type=Path, metavar="DIR", help="where they go (default: the tree's reports/baselines)"
    )
    parser.add_argument(
        "--new-bounds", action="store_true", help="make the bounds anew, from the noise of the runs that are stored"
    )


def run(arguments: argparse.Namespace) -> int:
    folder = arguments.baselines or Path(read_settings({}, tree.root()).baselines)
    one = stored.load_one(arguments.run)
    written, refused = accept(one, folder, note=arguments.note, keep_bounds=not arguments.new_bounds)
    print("\n".join(accepted_lines(written, refused)))
    return 1 if refused else 0
