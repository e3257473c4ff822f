"""Show the results of stored runs (tables, failures, warnings and verdicts), or the log of a rank.

The exit code is 1 if files of a run were changed after the run.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.report.terminal import ranklog
from pytest_flagperf.report.terminal.figures import MAIN, over_rounds
from pytest_flagperf.report.terminal.summary import all_lines, summarize_run
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.tables.runs import is_run
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.stored.layout import host_folder, rank_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs = f"{common.RUNS}; also logs of ranks ({rank_log(0)}) and FlagPerf's result folders (result/run<timestamp>)"
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help=runs)
    parser.add_argument(
        "--width", type=_columns, metavar="COLUMNS", help="width of the table (default: the terminal's width)"
    )
    parser.add_argument(
        "--figures", action="store_true", help="show all figures over the rounds, not only the main ones"
    )


def run(arguments: argparse.Namespace) -> int:
    width = arguments.width or shutil.get_terminal_size().columns
    logs = {path: _logs(path) for path in arguments.runs}
    runs = [path for path, own_logs in logs.items() if not own_logs]
    shown = [ranklog.lines(log) for own_logs in logs.values() for log in own_logs]
    loaded = common.load_also_changed(runs) if runs else []
    shown += [lines(run, width, every=arguments.figures) for run in loaded]
    print("\n\n".join("\n".join(each) for each in shown))
    return 1 if any(run.changed for run in loaded) else 0


def _logs(path: Path) -> list[Path]:
    """Return the log itself if the path is a file; in a result folder of FlagPerf, the logs of rank 0."""
    if path.is_file() or is_run(path):
        return [path] if path.is_file() else []
    return sorted(path.glob(f"*/round*/{host_folder('*', 0)}/{rank_log(0)}"))


def _columns(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of columns, at least 1, as in 200")
    return int(text)


def lines(run: StoredRun, width: int, *, every: bool = False) -> Iterator[str]:
    """Yield the tables, the failures and the verdict of a run."""
    end = summarize_run(run, run.info.not_run if run.info else (), reports=[str(run.directory)])
    yield f"{run.directory}:"
    yield ""
    yield from console_table(run.cases, width)
    for case in run.cases:
        if every or len(case.outcomes) > 1:
            yield ""
            yield from over_rounds(case, width, None if every else MAIN)
    yield ""
    yield from all_lines(end.summaries)
    yield from (f"not run: {text}" for text in end.not_run)
    failures = {text for case in end.summaries for text in case.failures}
    yield from (f"note: {problem}" for problem in run.problems if problem not in failures)
    yield end.verdict(width)
