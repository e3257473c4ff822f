"""Result files in MLPerf's format, one per round, with rules to check them by.

The folder is laid out as a submission to MLPerf's open division is; its README.md says how to check it with
mlperf-logging. A round that evaluated nothing is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf.catalog import bundled
from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.export import mlperf
from pytest_flagperf.results.units import count

SUITES = Path("suites")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_run(parser)
    parser.add_argument("--to", type=Path, metavar="DIR", required=True, help="the folder to be made")
    parser.add_argument("--org", metavar="NAME", default="unverified", help="who hands it in (default: unverified)")
    parser.add_argument(
        "--suites", type=Path, metavar="DIR", default=SUITES, help="where <model>/mlperf.toml is (default: suites)"
    )


def run(arguments: argparse.Namespace) -> int:
    suites = _suites(arguments.suites)
    one = stored.load_one(arguments.run)
    with stored.new_directory(arguments.to) as made:
        found = mlperf.export(one, made, suites=suites, org=arguments.org)
        if not found.cases:
            raise Problems(found.left_out)
    print(f"{arguments.to}: not an MLPerf result; README.md there says how to check it")
    for case in found.cases:
        print(f"{case.files[0].parent}: {count(len(case.files), 'round')} of {case.case}")
    for sentence in found.left_out:
        print(f"left out: {sentence}")
    return 0


def _suites(given: Path) -> Path:
    """Return the folder of the suites that was given; by default that of the wheel where none is here."""
    if given.is_dir():
        return given
    if given != SUITES:
        raise Problems([f"{given}: no such directory"])
    root = bundled()
    return root / SUITES if root else given
