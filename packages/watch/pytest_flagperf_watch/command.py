"""Show a run while it runs: its cases, rounds, hosts, ranks, curves, devices and what it waits for.

The run's directory is enough, so this also shows a colleague's run, and over SSH (ssh -t HOST flagperf watch RUN) the
runs of another machine. Nothing in the directory is changed. The command ends with the run, and at once for a run that
has ended; q or Ctrl-C ends only the command. Without a terminal it prints the present state and
ends: the run itself writes a line for each phase, and one a minute.

Exit codes: 0, all passed, or the user ended the command; 1, the run failed, was interrupted or died; 2, the run cannot
be shown.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from pytest_flagperf.commands import common, show, tree
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.summary import summarize_run
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.runs import find_runs, newest_first
from pytest_flagperf.results.verdicts.case_result import BAD
from pytest_flagperf.settings import read_settings
from pytest_flagperf.stored import layout

from .follow import FollowedRun
from .view import Frame

_POLL_S = 1.0
_KEYS = "q"
_HELP = "a run directory, or a folder of them, of which the newest is shown (default: the folder of the reports)"


EXAMPLE = "reports/run20261121061129"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help=_HELP)
    parser.add_argument("--once", action="store_true", help="print the present state and end, as without a terminal")


def run(arguments: argparse.Namespace) -> int:
    followed = FollowedRun(_directory(arguments.run))
    followed.poll()
    if not followed.has_record or (followed.status().is_over and not arguments.once):
        return _show_end(followed)
    once = arguments.once
    if not once and not _is_terminal():
        print("expected a terminal to follow the run; this is its state now", file=sys.stderr)
        once = True
    if once:
        _print_frame(followed)
        return _exit_code(followed) if followed.status().is_over else 0
    try:
        has_left = _watch_terminal(followed)
    except KeyboardInterrupt:
        has_left = True
    return 0 if has_left else _show_end(followed)


def _directory(path: Path | None) -> Path:
    """Return the run to show; of a folder of runs, the newest one, which may not have started a round yet."""
    reports = path or Path(read_settings({}, tree.root()).reports)
    if _is_run(reports):
        return reports
    runs = [folder for folder in newest_first(reports) if _is_run(folder)] if reports.is_dir() else []
    if runs:
        return runs[0]
    if path is None:
        raise Problems([f"{reports}: no runs; pass RUN, a run directory"])
    return find_runs(path)[-1]  # raises the error with the reason, or finds runs with other names


def _is_run(path: Path) -> bool:
    return (path / layout.LIVE).is_dir() or (path / layout.RESULTS).is_file()


def _show_end(followed: FollowedRun) -> int:
    """Print the results of a run that is over, as ``flagperf show`` does, and return the exit code."""
    status = followed.status()
    if not followed.path.is_dir():
        print(f"{followed.path}: the run {status.text}")
        return 1
    stored = store.load_run(followed.path)
    if stored.cases:
        print("\n".join(show.lines(stored, common.width())))
    if followed.has_record and (not status.has_ended or not stored.cases):
        print(f"{followed.path}: the run {status.text}")
    if not stored.cases and not followed.has_record:
        raise Problems(stored.problems or [f"{followed.path}: contains no readable round"])
    if followed.has_record and not stored.changed:
        return _exit_code(followed)
    return 1 if stored.changed or any(case.state in BAD for case in summarize_run(stored).summaries) else 0


def _exit_code(followed: FollowedRun) -> int:
    """Return 0 if the live record says that pytest has ended with exit status 0."""
    main = followed.state.main
    return 0 if main is not None and main.has_ended and main.exit == 0 else 1


def _print_frame(followed: FollowedRun) -> None:
    Console(width=common.width(), highlight=False).print(Frame(followed, is_whole=True))


# -- on a terminal ---------------------------------------------------------------------------------------------------


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _watch_terminal(followed: FollowedRun) -> bool:
    """Draw the run until it is over; return True if the user left before."""
    console = Console(highlight=False)
    frame = Frame(followed, f"{_KEYS} or Ctrl-C: leave; the run goes on")
    with _ending_in_order(), _keys() as pressed, Live(frame, console=console, screen=True, auto_refresh=False) as live:
        while not followed.status().is_over:
            live.refresh()
            if pressed(_POLL_S) == _KEYS:
                return True
            followed.poll()
    return False


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Leave the terminal as it was also after SIGTERM."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key for some seconds; it returns an empty string without one."""
    try:
        import select
        import termios
        import tty
    except ImportError:  # not on Windows
        yield _wait_only
        return
    if not sys.stdin.isatty():
        yield _wait_only
        return

    def pressed(seconds: float) -> str:
        if not select.select([handle], [], [], seconds)[0]:
            return ""
        return os.read(handle, 1).decode("ascii", "replace") or _KEYS  # the terminal was closed

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _wait_only(seconds: float) -> str:
    time.sleep(seconds)
    return ""
