"""A model README's performance tables, as the original has them, in Markdown."""

from __future__ import annotations

import argparse

from pytest_flagperf.commands import stored
from pytest_flagperf.report.export.markdown import LANGUAGES, performance_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="of the words around the figures (default: en)")


def run(arguments: argparse.Namespace) -> int:
    print("\n".join(performance_tables(stored.load_all(arguments.runs), arguments.lang)))
    return 0
