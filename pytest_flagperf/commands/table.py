"""Print the performance tables of a model's README in Markdown, in FlagPerf's layout."""

from __future__ import annotations

import argparse

from pytest_flagperf.commands import common
from pytest_flagperf.report.export.markdown import LANGUAGES, performance_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the table (default: en)")


def run(arguments: argparse.Namespace) -> int:
    print("\n".join(performance_tables(common.load_runs(arguments.runs), arguments.lang)))
    return 0
