"""Export runs for other programs: results.csv, results.parquet, tables in Markdown, and the formats of plugins.

Without --to, the files of each run are written into its own directory. With --to, one set of files of all runs is
written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_flagperf.commands import common
from pytest_flagperf.packages import need
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.tables import columns, frames
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.stored import write_text
from pytest_flagperf.stored.layout import TABLE

from . import further, performance

_PARQUET = "results.parquet"
_OWN = ("csv", "parquet", "markdown")
_Write = Callable[[Sequence[StoredRun], Path], list[Path]]
EXAMPLE = "reports --format=csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_runs(parser)
    formats = (
        f"csv ({TABLE}, the table that each run also writes), parquet ({_PARQUET}, the table of"
        " pytest_flagperf.results.load), markdown (performance tables for a README, in FlagPerf's layout), or a format"
        " of an installed package, such as mlperf"
    )
    parser.add_argument("--format", metavar="NAME[,NAME...]", default="", help=formats)
    parser.add_argument("--long", action="store_true", help="in results.parquet: one row per round and metric")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write files of all runs into this folder")


def run(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(filter(None, arguments.format.split(","))))
    if not names:
        choices = f"choose from {', '.join(_OWN)} and the formats of installed packages"
        raise Problems([f"no format chosen: pass --format=NAME; {choices}"])
    if arguments.long and "parquet" not in names:
        raise Problems(["--long requires --format=parquet; results.csv always has one row per round"])
    if "parquet" in names:
        need("pandas", "pyarrow")
    writers = [_writer(name, long=arguments.long) for name in names]
    runs = common.load_runs(arguments.runs)
    groups = [(arguments.to, runs)] if arguments.to else [(run.directory, [run]) for run in runs]
    for directory, grouped in groups:
        directory.mkdir(parents=True, exist_ok=True)
        for write in writers:
            for path in write(grouped, directory):
                print(path)
    return 0


def _writer(name: str, *, long: bool) -> _Write:
    match name:
        case "csv":
            return _write_csv
        case "parquet":
            return partial(_write_parquet, long=long)
        case "markdown":
            return _write_tables
    return partial(further.write, further.find_exporter(name, _OWN))


def _write_csv(runs: Sequence[StoredRun], directory: Path) -> list[Path]:
    path = directory / TABLE
    outcomes = ((outcome for case in run.cases for outcome in case.outcomes) for run in runs)
    columns.write_csv(path, zip(common.unique_names(runs), outcomes, strict=True))
    return [path]


def _write_parquet(runs: Sequence[StoredRun], directory: Path, *, long: bool) -> list[Path]:
    path = directory / _PARQUET
    load = frames.load_long if long else frames.load
    table = load([run.directory for run in runs])
    temporary = path.with_name(f".{path.name}.new")
    try:
        table.to_parquet(temporary, index=False)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return [path]


def _write_tables(runs: Sequence[StoredRun], directory: Path) -> list[Path]:
    path = directory / performance.FILE
    write_text(path, performance.performance_tables(runs))
    return [path]
