"""Commands that share a limited time: the most valuable first, each with its own limit and its own recorded result."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import final

from .section import REPO, table

PASSED, FAILED, TIMED_OUT, STOPPED, NOT_RUN = "passed", "failed", "timed out", "stopped", "not run"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.05
GRACE_S = 15.0
"""Time of an interrupted command to end its own processes."""
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Item:
    """A command, its estimated and its longest duration, and the reader of its figures.

    ``figures`` gets the item's folder, which has the command's output as ``output.log``. It raises ValueError if the
    command's results are missing or wrong.
    """

    name: str
    command: Sequence[str]
    estimate_s: float
    limit_s: float
    figures: Callable[[Path], Figures] | None = None
    counted: bool = True
    """False: the time of the item is not taken from the available time."""
    skip: str = ""
    """The reason why the item cannot run on this machine."""
    estimate_from: str = "guess"
    """``guess`` or ``last run``."""

    def result(
        self, status: str, reason: str = "", took_s: float | None = None, figures: Figures | None = None
    ) -> Result:
        """Return the result of this item."""
        command = shlex.join(self.command)
        return Result(self.name, command, status, self.estimate_s, self.estimate_from, took_s, figures or {}, reason)


@dataclass(frozen=True)
class Result:
    """What became of an item."""

    name: str
    command: str
    status: str
    estimate_s: float
    estimate_from: str = "guess"
    took_s: float | None = None
    figures: Figures = field(default_factory=dict)
    reason: str = ""

    @property
    def row(self) -> Sequence[str]:
        """The row of the table of results."""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        took = "" if self.took_s is None else f"{self.took_s:.0f}"
        estimate = f"{self.estimate_s:.0f} ({self.estimate_from})"
        return (self.name, self.status, estimate, took, figures or self.reason)


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


def run_items(items: Sequence[Item], seconds: float, folder: Path, stop: StopSignals | None = None) -> list[Result]:
    """Run the items that fit into the time, in order, until a signal; write the results after each one."""
    results: list[Result] = []
    left = seconds
    stop = stop or StopSignals()
    for item in items:
        if reason := item.skip or stop.reason:
            results.append(item.result(NOT_RUN, reason))
        elif item.counted and item.estimate_s > left:
            reason = f"needs about {item.estimate_s:.0f} s, {max(left, 0):.0f} s left"
            results.append(item.result(NOT_RUN, reason))
        else:
            print(f"{item.name}: {shlex.join(item.command)}", flush=True)
            result = _run(item, folder / item.name, left if item.counted else inf, stop)
            print(f"  {result.status} after {result.took_s:.0f} s {result.reason}".rstrip(), flush=True)
            left -= result.took_s if item.counted and result.took_s else 0
            results.append(result)
        write_results(results, folder)
    return results


def with_last_durations(items: Sequence[Item], folder: Path) -> list[Item]:
    """Replace the estimates by the durations of the same commands in the runs beside this folder; the last counts."""
    durations: dict[str, float] = {}
    for path in sorted(folder.parent.glob("gpu*/items.json")):
        with suppress(ValueError, KeyError, TypeError):  # a stopped run may have left half a file
            for result in json.loads(path.read_text()):
                if result["status"] == PASSED:
                    command = result["command"].replace(str(path.parent), str(folder))
                    durations[command] = float(result["took_s"])
    return [
        replace(item, estimate_s=durations[command], estimate_from="last run") if command in durations else item
        for item in items
        for command in [shlex.join(item.command)]
    ]


def write_results(results: Sequence[Result], folder: Path) -> None:
    """Write the results so far, for programs and for people."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    rows = [result.row for result in results]
    (folder / "items.md").write_text(table(("item", "status", "estimate (s)", "took (s)", "figures"), rows) + "\n")


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 if an item failed or reached its limit; an item that did not run does not count."""
    return int(any(result.status in (FAILED, TIMED_OUT) for result in results))


def _run(item: Item, folder: Path, left_s: float, stop: StopSignals) -> Result:
    folder.mkdir(parents=True)
    log = folder / "output.log"
    began = time.monotonic()
    deadline = began + min(item.limit_s, left_s)
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                item.command, cwd=REPO, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return item.result(FAILED, f"cannot start: {error}", 0.0)
        try:
            while (code := process.poll()) is None and time.monotonic() < deadline and not stop.number:
                time.sleep(POLL_S)
        finally:
            _end(process)
    took = time.monotonic() - began
    if code is None and stop.number:
        return item.result(STOPPED, stop.reason, took)
    if code is None and left_s < item.limit_s:
        return item.result(STOPPED, "the available time is spent; pass more minutes", took)
    if code is None:
        return item.result(TIMED_OUT, f"stopped at its limit of {item.limit_s:.0f} s; see {log}", took)
    figures: Figures = {}
    reason = "" if code == 0 else f"exit code {code}; see {log}"
    try:
        figures = item.figures(folder) if item.figures and not code else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"expected its figures in {folder}, got {type(error).__name__}: {error}"
    return item.result(FAILED if reason else PASSED, reason, took, figures)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command that still runs, so that it can end its hosts' processes; then kill its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
