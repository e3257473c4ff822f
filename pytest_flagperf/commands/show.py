"""Show the results of stored runs (tables, failures, warnings and verdicts), or the log of a rank.

The exit code is 1 if files of a run were changed after the run. ``--fetch-logs`` fetches the logs that the hosts of a
run kept instead, as of rounds on more than 32 hosts, with the options of the run and the flagperf.toml of this folder;
the exit code is 1 if logs are missing, or are not those that the host summed up.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from flagperf_driver.layout import rank_log
from flagperf_driver.node.logs.ranklog import RankLog, read_rank
from flagperf_driver.perflog import number
from flagperf_driver.target import Target
from pytest_flagperf.commands import common
from pytest_flagperf.hosts.cluster import split_hosts
from pytest_flagperf.printable import printable
from pytest_flagperf.report.terminal.summary import all_lines, summarize_run
from pytest_flagperf.report.terminal.table import MAIN, console_table, over_rounds
from pytest_flagperf.results.figures.units import count, plain, quantity
from pytest_flagperf.results.measured.metrics import TIMES
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import RESULTS, host_folder
from pytest_flagperf.stored.live_record import state_of
from pytest_flagperf.stored.round_dir import has_rounds

_ALL = "all"
_NO_TARGET = Target("", "", "", None)
_RATES = ("p_whole", "p_train", "p_core")
EXAMPLE = "reports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs = f"{common.RUNS}; also logs of ranks ({rank_log(0)}) and FlagPerf's result folders (result/run<timestamp>)"
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help=runs)
    parser.add_argument(
        "--width", type=_columns, metavar="COLUMNS", help="width of the table (default: the terminal's width)"
    )
    parser.add_argument(
        "--figures", action="store_true", help="show all figures over the rounds, not only the main ones"
    )
    parser.add_argument(
        "--fetch-logs", metavar="HOST,...", help=f"fetch the logs that these hosts kept, or {_ALL} of them, and stop"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.fetch_logs is not None:
        return _fetch_logs([common.find_run(path) for path in arguments.runs], arguments.fetch_logs)
    width = arguments.width or shutil.get_terminal_size().columns
    logs = {path: _logs(path) for path in arguments.runs}
    runs = [path for path, own_logs in logs.items() if not own_logs]
    shown = [log_lines(log) for own_logs in logs.values() for log in own_logs]
    loaded = common.load_also_changed(runs) if runs else []
    shown += [lines(run, width, every=arguments.figures) for run in loaded]
    print("\n\n".join("\n".join(each) for each in shown))
    return 1 if any(run.changed for run in loaded) else 0


def _fetch_logs(runs: Sequence[Path], hosts: str) -> int:
    from pytest_flagperf.running import kept_logs  # loads slowly

    names = () if hosts == _ALL else split_hosts(hosts)
    found = [one for run_dir in runs for one in kept_logs.fetch(run_dir, names, Path.cwd())]
    for is_fetched, sentence in found:
        print(sentence if is_fetched else f"problem: {sentence}")
    if not found:
        print(f"no logs to fetch: {'no host' if hosts == _ALL else f'none of {hosts}'} kept its logs")
    return 0 if found and all(is_fetched for is_fetched, _ in found) else 1


def _logs(path: Path) -> list[Path]:
    """Return the log itself if the path is a file; in a result folder of FlagPerf, the logs of rank 0."""
    if path.is_file() or has_rounds(path):
        return [path] if path.is_file() else []
    return sorted(path.glob(f"*/round*/{host_folder('*', 0)}/{rank_log(0)}"))


def _columns(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of columns, at least 1, as in 200")
    return int(text)


def lines(run: StoredRun, width: int, *, every: bool = False) -> Iterator[str]:
    """Yield the tables, the failures and the verdict of a run."""
    end = summarize_run(run, run.info.not_run if run.info else (), reports=[str(run.directory)])
    unfinished = None if run.info else _unfinished(run)
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
    notes = [problem for problem in run.problems if problem not in failures]
    if unfinished:  # its results.json is not written yet
        notes = [problem for problem in notes if not problem.startswith(f"{run.directory / RESULTS}: ")]
    yield from (f"note: {problem}" for problem in notes)
    yield unfinished or end.verdict(width)


def _unfinished(run: StoredRun) -> str | None:
    """Return how far a run is that has not ended, or whose process was killed; None if its record does not tell."""
    state = state_of(run.directory)
    if state is None:
        return None
    runs, cases = state
    done = sum(bool(case.verdicts) and len(case.outcomes) >= case.repeat for case in run.cases)
    of_all = f"{done} of {count(max(cases, done), 'case')} measured"
    if runs:
        return f"flagperf: still running: {of_all}; flagperf watch {run.directory} follows it"
    return f"flagperf: killed: {of_all}; pytest --resume={run.directory} continues it"


def log_lines(path: Path) -> Iterator[str]:
    """Yield the figures of the log; FormatError if the file has no records."""
    log = read_rank(path, 0, _NO_TARGET, loads=orjson.loads)
    if log.last_ms is None:
        raise FormatError(f"{path}: no [PerfLog] record; expected the log of a rank, such as {rank_log(0)}")
    kind = "rank log of FlagPerf, with names of pytest-flagperf" if log.names.original else "rank log"
    yield f"{path}: {kind}, not judged"
    if log.names.difference:
        yield f"  different values of the same figure: {printable(log.names.difference)}"
    rows = dict(_rows(log))
    width = max(map(len, rows), default=0)
    yield from (f"  {printable(name):{width}}  {text}" for name, text in rows.items())


def _rows(log: RankLog) -> Iterator[tuple[str, str]]:
    finished: Mapping[str, Any] = log.finished or {}
    if log.steps:
        last = log.steps[-1]
        yield "step", f"{last.step:,}"
        yield "samples", f"{last.samples:,}"
        yield "throughput", f"{quantity(last.throughput, 'samples/s')} (last STEP_END)"
    yield "finished", "yes" if log.finished is not None else "no"
    if "converged" in finished:
        yield "converged", f"{'yes' if finished['converged'] is True else 'no'} (reported by the program)"
    metrics = finished.get("final_metrics")
    for name, value in (metrics if isinstance(metrics, dict) else {}).items():
        yield name, plain(number(value))
    if "final_loss" in finished:
        yield "final_loss", plain(number(finished["final_loss"]))
    for names, unit in ((_RATES, "samples/s"), (TIMES, "s")):
        yield from ((name, quantity(number(finished[name]), unit)) for name in names if finished.get(name) is not None)
