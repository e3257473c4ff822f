"""Runs as files for other programs: results.csv, results.parquet.

Without --to each run's files are written into its own directory; with it one table of all runs into another.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flagperf.commands import stored
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import columns, frames
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import Run
from pytest_flagperf.stored.layout import TABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_runs(parser)
    parser.add_argument("--csv", action="store_true", help="results.csv, as a run writes it at its end")
    parser.add_argument("--parquet", action="store_true", help="results.parquet, of pytest_flagperf.results.load")
    parser.add_argument("--long", action="store_true", help="of the parquet file: a row per round and metric")
    parser.add_argument("--to", type=Path, metavar="DIR", help="one table of all runs, in this folder")


def run(arguments: argparse.Namespace) -> int:
    if not (arguments.csv or arguments.parquet):
        raise Problems(["say which: --csv, --parquet, or both"])
    if arguments.long and not arguments.parquet:
        raise Problems(["--long is of --parquet: results.csv has one row per round"])
    if arguments.parquet:
        frames.need("pandas", "pyarrow")
    runs = stored.load_all(arguments.runs)
    groups = [(arguments.to, runs)] if arguments.to else [(each.directory, [each]) for each in runs]
    for directory, held in groups:
        directory.mkdir(parents=True, exist_ok=True)
        for path in _write(directory, held, arguments):
            print(path)
    return 0


def _outcomes(run: Run) -> Iterator[Outcome]:
    yield from (outcome for case in run.cases for outcome in case.outcomes)


def _write(directory: Path, runs: Sequence[Run], arguments: argparse.Namespace) -> list[Path]:
    written = []
    if arguments.csv:
        written.append(directory / TABLE)
        columns.write_csv(written[-1], zip(stored.names_of(runs), map(_outcomes, runs), strict=True))
    if arguments.parquet:
        written.append(directory / "results.parquet")
        load = frames.load_long if arguments.long else frames.load
        table = load([one.directory for one in runs])
        beside = written[-1].with_name(f".{written[-1].name}.new")
        try:
            table.to_parquet(beside, index=False)
            beside.replace(written[-1])
        finally:
            beside.unlink(missing_ok=True)
    return written
