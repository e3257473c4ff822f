"""Export runs for other programs: results.csv, results.parquet, and the formats of installed plugins.

Without --to, the files of each run are written into its own directory. With --to, one table of all runs is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import columns, frames
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.stored.layout import TABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    parser.add_argument("--csv", action="store_true", help="write results.csv, the table that each run also writes")
    parser.add_argument(
        "--parquet", action="store_true", help="write results.parquet, the table of pytest_flagperf.results.load"
    )
    parser.add_argument("--format", metavar="NAME", help="write the files of a format of an installed plugin")
    parser.add_argument("--long", action="store_true", help="with --parquet: write one row per round and metric")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write one table of all runs into this folder")


def run(arguments: argparse.Namespace) -> int:
    if not (arguments.csv or arguments.parquet or arguments.format):
        raise Problems(["no format chosen: pass --csv, --parquet or --format=NAME"])
    if arguments.long and not arguments.parquet:
        raise Problems(["--long requires --parquet; results.csv always has one row per round"])
    if arguments.parquet:
        frames.need("pandas", "pyarrow")
    write_further = _further(arguments.format) if arguments.format else None
    runs = common.load_runs(arguments.runs)
    groups = [(arguments.to, runs)] if arguments.to else [(run.directory, [run]) for run in runs]
    for directory, grouped in groups:
        directory.mkdir(parents=True, exist_ok=True)
        for path in _write(directory, grouped, arguments):
            print(path)
        for path in write_further(grouped, directory) if write_further else ():
            print(path)
    return 0


def _further(name: str) -> Callable[[Sequence[StoredRun], Path], list[Path]]:
    """Return the function that writes the files of a plugin's format."""
    from pytest_flagperf.report.export import further

    return partial(further.write, further.find_exporter(name))


def _outcomes(run: StoredRun) -> Iterator[Outcome]:
    yield from (outcome for case in run.cases for outcome in case.outcomes)


def _write(directory: Path, runs: Sequence[StoredRun], arguments: argparse.Namespace) -> list[Path]:
    written = []
    if arguments.csv:
        written.append(directory / TABLE)
        columns.write_csv(written[-1], zip(common.unique_names(runs), map(_outcomes, runs), strict=True))
    if arguments.parquet:
        written.append(directory / "results.parquet")
        load = frames.load_long if arguments.long else frames.load
        table = load([run.directory for run in runs])
        temporary = written[-1].with_name(f".{written[-1].name}.new")
        try:
            table.to_parquet(temporary, index=False)
            temporary.replace(written[-1])
        finally:
            temporary.unlink(missing_ok=True)
    return written
