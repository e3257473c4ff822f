"""What a run closed with, its failures and warnings, and each case's figures over its rounds; or a rank's log."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.report.terminal import ranklog
from pytest_flagperf.report.terminal.figures import MAIN, over_rounds
from pytest_flagperf.report.terminal.summary import all_lines, summarize_run
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.runs import is_run
from pytest_flagperf.results.store import Run
from pytest_flagperf.stored.layout import host_folder, rank_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = (
        f"{stored.RUNS}; also logs of ranks ({rank_log(0)}) and the original's result folders (result/run<timestamp>)"
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help=what)
    parser.add_argument("--width", type=_columns, metavar="COLUMNS", help="of the table (default: the terminal's)")
    parser.add_argument("--figures", action="store_true", help="every figure over the rounds, not the main ones alone")


def run(arguments: argparse.Namespace) -> int:
    width = arguments.width or shutil.get_terminal_size().columns
    logs = {path: _logs(path) for path in arguments.runs}
    runs = [path for path, its in logs.items() if not its]
    shown = [ranklog.lines(log) for its in logs.values() for log in its]
    shown += [_lines(one, width, every=arguments.figures) for one in (stored.load_all(runs) if runs else ())]
    print("\n\n".join("\n".join(lines) for lines in shown))
    return 0


def _logs(path: Path) -> list[Path]:
    """The log that a path names, or those of the first ranks in a result folder of the original."""
    if path.is_file() or is_run(path):
        return [path] if path.is_file() else []
    return sorted(path.glob(f"*/round*/{host_folder('*', 0)}/{rank_log(0)}"))


def _columns(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of columns; a whole number from 1 is wanted, as in 200"
        )
    return int(text)


def _lines(one: Run, width: int, *, every: bool) -> Iterator[str]:
    end = summarize_run(one, [*one.info.unsupported] if one.info else [], reports=[str(one.directory)])
    yield f"{one.directory}:"
    yield ""
    yield from console_table(one.cases, width)
    for case in one.cases:
        if every or len(case.outcomes) > 1:
            yield ""
            yield from over_rounds(case, width, None if every else MAIN)
    yield ""
    yield from all_lines(end.summaries)
    yield from (f"not run: {text}" for text in end.not_run)
    failures = {text for case in end.summaries for text in case.failures}
    yield from (f"note: {problem}" for problem in one.problems if problem not in failures)
    yield end.verdict(width)
