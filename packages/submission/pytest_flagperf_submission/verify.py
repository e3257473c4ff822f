"""Derive the figures of stored runs again from their logs, and list what differs from the stored figures.

The outcome of each round is measured again from its logs, the verdicts that follow from outcomes are judged again, and
both are compared with outcome.json, the files of verdicts and results.json. All files of SHA256SUMS are checked, also
logs. The exit code is 1 if something differs. Logs that were replaced together with everything made from them cannot be
recognized: keep the digest of SHA256SUMS elsewhere for that.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_flagperf import __version__
from pytest_flagperf.commands import common
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import find_runs
from pytest_flagperf.results.verification import verify

EXAMPLE = "reports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)


def run(arguments: argparse.Namespace) -> int:
    is_equal = True
    for directory in find_runs(arguments.runs):
        number, differences = verify(directory)
        for difference in differences:
            print(f"difference: {difference}")
        rounds = f"{count(number, 'round')} derived again"
        print(f"{directory}: {rounds}: {count(len(differences), 'difference') or 'no difference'}")
        print(f"note: report.html and results.csv are not checked: flagperf report {directory} makes the page again")
        if differences:
            is_equal = False
            print("\n".join(_other_version(directory)), end="")
    return 0 if is_equal else 1


def _other_version(directory: Path) -> list[str]:
    """Return a note if another version made the run, which may have derived other figures from the same logs."""
    info, own = store.load_info(directory, []), __version__
    made_by = info.versions.get("pytest-flagperf", "") if info else ""
    note = f"note: pytest-flagperf {made_by} made the run, and this is {own}: it may derive other figures\n"
    return [note] if made_by not in ("", own) else []
