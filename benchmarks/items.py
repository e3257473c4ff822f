"""Commands that are measured in slices of time: in order, each until it passes, each with its own recorded result."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, final

from flagperf_driver.node.processes import die_with
from pytest_flagperf import stored
from pytest_flagperf.catalog.suite import Goal
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.stored import FormatError, type_check
from pytest_flagperf.stored.layout import OPTIONS
from pytest_flagperf.stored.round_dir import RoundDir

from .section import PYTEST, REPO, relative, table

PASSED, FAILED, TIMED_OUT, STOPPED, NOT_RUN = "passed", "failed", "timed out", "stopped", "not run"
UNSUCCESSFUL = (FAILED, TIMED_OUT)
"""An item with such a result runs again at a later call."""
SKIPPED = "skipped"
"""The item cannot run on this machine."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESULT = "result.json"
"""The last file of an item."""
VALIDITY = "validity warnings"
"""The fact of a machine that distorted the measurement."""
HEAD = ("item", "status", "took (s)", "figures", "goal")
POLL_S = 0.05
GRACE_S = 15.0
"""Time of an interrupted command to end its own processes."""


@dataclass(frozen=True)
class Figure:
    """A measured value with its unit."""

    value: float
    unit: str = ""


class Measured(NamedTuple):
    """What a command measured, and on which machine."""

    figures: Mapping[str, Figure]
    machine: Mapping[str, str] = {}
    largest_loss: str = ""
    """Where most time of a step is lost, and what it reaches of the chip's peaks, by the run's profile."""


@dataclass(frozen=True)
class Item:
    """A command, its estimated and its longest duration, and the reader of its figures.

    ``read_figures`` gets the item's folder, which has the command's output as ``output.log``. It raises ValueError if
    the command's results are missing or wrong.
    """

    name: str
    command: Sequence[str]
    estimate_s: float
    limit_s: float
    read_figures: Callable[[Path], Measured] | None = None
    goal: Goal | None = None
    """The goal of the figure p_core."""
    skip: str = ""
    """The reason why the item cannot run on this machine."""
    parts: int = 1
    """Number of rounds of similar duration; a later call continues with those that have not ended."""
    estimate_from: str = "guess"
    """``guess`` or ``last run``."""

    @property
    def shown(self) -> str:
        """The command as a user types it."""
        words = tuple(self.command)
        short = ("pytest", *words[len(PYTEST) :]) if words[: len(PYTEST)] == PYTEST else words
        return shlex.join("python" if word == sys.executable else word for word in short)

    def result(
        self, status: str, reason: str = "", took_s: float | None = None, measured: Measured | None = None
    ) -> Result:
        """Return the result of this item."""
        return Result(self.name, self.shown, status, took_s, *(measured or Measured({})), self.goal, reason)


@dataclass(frozen=True)
class Result:
    """The status of an item, and what it measured."""

    name: str
    command: str
    status: str
    took_s: float | None = None
    """The duration, with that of the calls that it continues."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    largest_loss: str = ""
    goal: Goal | None = None
    reason: str = ""

    @property
    def row(self) -> Sequence[str]:
        """The row of the table of results, as in ``HEAD``."""
        figures = [f"{name} {quantity(figure.value, figure.unit)}" for name, figure in self.figures.items()]
        named = {"power_limit": "power limit", VALIDITY: VALIDITY}
        figures += [f"{words} {self.machine[name]}" for name, words in named.items() if name in self.machine]
        texts = filter(None, [self.reason, ", ".join(figures), self.largest_loss])
        took = "" if self.took_s is None else f"{self.took_s:.0f}"
        return (self.name, self.status, took, "; ".join(texts), self._share)

    @property
    def _share(self) -> str:
        """The reached share of the goal, and the goal."""
        if not self.goal:
            return ""
        goal = f"{self.goal.rate:g} on {self.goal.chip}"
        return f"{self.figures['p_core'].value / self.goal.rate:.0%} of {goal}" if "p_core" in self.figures else goal


def read_result(file: Path) -> Result:
    """Return a stored result; raise FormatError if the file is missing or is not a result."""
    return type_check.typed(Result, stored.read(file), str(file))


@final
class StopSignals:
    """Record a signal that asks this program to stop, so that the program can end its item and report."""

    number = 0

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._record) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, _: object) -> None:
        self.number = number

    @property
    def reason(self) -> str:
        """The sentence for the results, empty without a signal."""
        return f"{signal.Signals(self.number).name} received" if self.number else ""


class Slice:
    """The available time of one call."""

    def __init__(self, seconds: float, began: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.end = (clock() if began is None else began) + seconds
        self.is_new = True
        """No item has started in this slice."""

    @property
    def left_s(self) -> float:
        """The time in which an item may run; the rest of the slice is for the end of its processes."""
        return self.end - GRACE_S - self.clock()


def fits(item: Item, left_s: float, *, is_new: bool, is_next: bool) -> bool:
    """Return True if the item may start: all of it fits into the slice, or a part if all items before it are done.

    An item that is longer than a slice starts first in one.
    """
    return is_new or left_s >= (item.estimate_s / item.parts if is_next else item.estimate_s)


def slices(items: Sequence[Item], seconds: float) -> Iterator[list[Item]]:
    """Yield the items of each slice, if the estimates are right."""
    left = [item for item in items if not item.skip]
    while left:
        chosen: list[Item] = []
        later: list[Item] = []
        time_left = seconds - GRACE_S
        for item in left:
            if not fits(item, time_left, is_new=not chosen, is_next=not later):
                later.append(item)
                continue
            chosen.append(item)
            if item.parts > 1 and item.estimate_s > time_left:
                later.append(replace(item, estimate_s=item.estimate_s - time_left))
            time_left -= item.estimate_s
        yield chosen
        left = later


def run_items(
    items: Sequence[Item],
    available: Slice,
    folder: Path,
    stop: StopSignals | None = None,
    publish: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run the items that have not passed and fit into the slice, until a signal; write the table of all of them.

    Each item has its folder. ``publish`` gets a result before it is stored: what is stored is published.
    """
    before = stored_results(items, folder)
    results = {name: result for name, result in before.items() if result.status == PASSED}
    stop = stop or StopSignals()
    for item in waiting(items, before):
        is_next = all(result.status != NOT_RUN for result in results.values())
        reason = stop.reason
        if not fits(item, available.left_s, is_new=available.is_new, is_next=is_next):
            reason = reason or f"needs about {item.estimate_s:.0f} s, {max(available.left_s, 0):.0f} s left"
        last = before.get(item.name)
        if item.skip:
            results[item.name] = item.result(SKIPPED, item.skip)
        elif reason:
            results[item.name] = last if last and last.status in UNSUCCESSFUL else item.result(NOT_RUN, reason)
        else:
            print(f"{item.name}: {item.shown}", flush=True)
            result = _run(item, folder / item.name, last, available, stop)
            available.is_new = False
            if result.status != STOPPED:
                publish(result)
            stored.write(folder / item.name / RESULT, result)
            print("  " + " | ".join(filter(None, result.row[1:])), flush=True)
            results[item.name] = result
    in_order = [results[item.name] for item in items]
    stored.write_text(folder / "items.md", table(HEAD, [result.row for result in in_order]) + "\n")
    return in_order


def stored_results(items: Sequence[Item], folder: Path) -> dict[str, Result]:
    """Return the results of earlier calls by item; a file that cannot be read is left out."""
    results: dict[str, Result] = {}
    for item in items:
        with suppress(FormatError):
            results[item.name] = read_result(folder / item.name / RESULT)
    return results


def waiting(items: Sequence[Item], before: Mapping[str, Result]) -> list[Item]:
    """Return the items that have not passed; those that failed come last, so that they hold up no other.

    An item that timed out needs more than the time that it took.
    """
    left: list[Item] = []
    for item in items:
        last = before.get(item.name)
        if last and last.status == TIMED_OUT:
            left.append(replace(item, estimate_s=max(item.estimate_s, last.took_s or 0)))
        elif not last or last.status != PASSED:
            left.append(item)
    return sorted(left, key=lambda item: item.name in before and before[item.name].status in UNSUCCESSFUL)


def with_last_durations(items: Sequence[Item], folder: Path) -> list[Item]:
    """Replace the estimates by the durations of the same commands in the folders beside this one; the last counts."""
    durations: dict[str, float] = {}
    for path in sorted(folder.parent.glob(f"*/*/{RESULT}"), key=lambda path: path.stat().st_mtime):
        with suppress(FormatError):
            result = read_result(path)
            if result.status == PASSED and result.took_s is not None:
                durations[result.command.replace(path.parent.parent.name, folder.name)] = result.took_s
    return [
        replace(item, estimate_s=durations[command], estimate_from="last run") if command in durations else item
        for item in items
        for command in [item.shown]
    ]


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 if an item failed or reached its limit; an item that did not run does not count."""
    return int(any(result.status in UNSUCCESSFUL for result in results))


def _command(item: Item, folder: Path, last: Result | None) -> tuple[list[str], float]:
    """Return the command, and the seconds of the unfinished run of pytest that it continues; remove any other rest.

    A failed item begins anew, except for its parts that passed.
    """
    unfinished = sorted(path.parent for path in folder.glob(f"run*/{OPTIONS}"))
    begins_anew = last is not None and last.status == FAILED and item.parts == 1
    if unfinished and not begins_anew and tuple(item.command[: len(PYTEST)]) == PYTEST:
        return [*item.command, f"--resume={unfinished[-1]}"], (last.took_s or 0.0) if last else 0.0
    shutil.rmtree(folder, ignore_errors=True)
    return list(item.command), 0.0


def _run(item: Item, folder: Path, last: Result | None, available: Slice, stop: StopSignals) -> Result:
    command, spent_s = _command(item, folder, last)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    has_whole_slice, rounds = available.is_new, _ended_rounds(folder)
    began, left_s, parent = available.clock(), available.left_s, os.getpid()
    deadline = began + min(item.limit_s, left_s)
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=REPO,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent),  # safe: this process has one thread
            )
        except OSError as error:
            return item.result(FAILED, f"cannot start: {error}", 0.0)
        try:
            while (code := process.poll()) is None and available.clock() < deadline and not stop.number:
                time.sleep(POLL_S)
        finally:
            _end(process)
    took = spent_s + available.clock() - began
    if code is None and stop.number:
        return item.result(STOPPED, stop.reason, took)
    if code is None and left_s < item.limit_s:
        if not has_whole_slice or _ended_rounds(folder) > rounds:
            return item.result(STOPPED, "the slice has ended; the next call continues", took)
        return item.result(TIMED_OUT, f"did not end within a slice: pass a longer SLICE; see {relative(log)}", took)
    if code is None:
        return item.result(TIMED_OUT, f"stopped at its limit of {item.limit_s:.0f} s; see {relative(log)}", took)
    measured, reason = Measured({}), "" if code == 0 else f"exit code {code}; see {relative(log)}"
    try:
        measured = item.read_figures(folder) if item.read_figures else measured
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = reason or f"expected its figures in {relative(folder)}, got {type(error).__name__}: {error}"
    return item.result(FAILED if reason else PASSED, reason, took, measured)


def _ended_rounds(folder: Path) -> int:
    return sum(RoundDir(path).has_ended for path in folder.glob("run*/*/round*"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command that still runs, so that it can end its hosts' processes; then kill its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
