"""Write a result file in MLPerf's format for each round, with rules to check these files.

The folder has the layout of a submission to MLPerf's open division; its README.md explains how to check the files with
mlperf-logging. Rounds without an evaluation are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.catalog import bundled
from pytest_flagperf.commands import common
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.export import mlperf
from pytest_flagperf.results.figures.units import count

SUITES = Path("suites")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_run(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="the folder to create")
    parser.add_argument(
        "--org", metavar="NAME", default="unverified", help="the submitter's name (default: unverified)"
    )
    parser.add_argument(
        "--suites",
        type=Path,
        metavar="DIR",
        default=SUITES,
        help="the folder with <model>/mlperf.toml (default: suites)",
    )


def run(arguments: argparse.Namespace) -> int:
    suites = _suites(arguments.suites)
    loaded = common.load_run(arguments.run)
    with common.new_directory(arguments.to) as folder:
        exported = mlperf.export(loaded, folder, suites=suites, org=arguments.org)
        if not exported.cases:
            raise Problems(exported.left_out)
    print(f"{arguments.to}: not an official MLPerf result; its README.md explains how to check it")
    for case in exported.cases:
        print(f"{case.files[0].parent}: {count(len(case.files), 'round')} of {case.case}")
    for sentence in exported.left_out:
        print(f"left out: {sentence}")
    return 0


def _suites(given: Path) -> Path:
    """Return the given folder of suites; the wheel's folder if the default folder does not exist."""
    if given.is_dir():
        return given
    if given != SUITES:
        raise Problems([f"{given}: no such directory"])
    root = bundled()
    return root / SUITES if root else given
