"""The table that a run closed with, its warnings and failures, again from what it stored."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator

from pytest_flagperf.commands import stored
from pytest_flagperf.report.table import console_table
from pytest_flagperf.results.store import CaseResult, Run
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="of the table (default: the terminal's)")


def run(arguments: argparse.Namespace) -> int:
    width = arguments.width or shutil.get_terminal_size().columns
    for number, one in enumerate(stored.load_all(arguments.runs)):
        print("\n".join([*([""] if number else []), *_lines(one, width)]))
    return 0


def _lines(one: Run, width: int) -> Iterator[str]:
    yield f"{one.directory}: {_summary(one)}"
    yield ""
    yield from console_table(one.cases, width)
    told = [line for case in one.cases for line in (*_failures(case), *_warnings(case))]
    told += [f"not run: {line}" for line in (one.info.unsupported if one.info else ())]
    told += [f"note: {problem}" for problem in one.problems]
    if told:
        yield ""
        yield from told


def _summary(one: Run) -> str:
    bad = sum(not case.ok for case in one.cases)
    return f"{count(len(one.cases), 'case')}, " + (f"{bad} of them not well" if bad else "all well")


def _failures(case: CaseResult) -> Iterator[str]:
    """Each sentence once: several tests judge the same round."""
    judged = [verdict.sentence for verdicts in case.verdicts.values() for verdict in failed(verdicts)]
    ended = [failure.sentence for outcome in case.outcomes for failure in outcome.failures]
    if not case.verdicts and not ended:
        ended.append("nothing was judged")
    yield from (f"failed: {case.case}: {sentence}" for sentence in dict.fromkeys([*judged, *ended]))


def _warnings(case: CaseResult) -> Iterator[str]:
    for outcome in case.outcomes:
        yield from (f"warning: {case.case} round {outcome.round}: {line}" for line in outcome.warnings)
