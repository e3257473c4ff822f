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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .section import REPO, table

PASSED, FAILED, TIMED_OUT, NOT_RUN = "passed", "failed", "timed out", "not run"
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


@dataclass(frozen=True)
class Result:
    """What became of an item."""

    name: str
    command: str
    status: str
    estimate_s: float
    took_s: float | None = None
    figures: Figures = field(default_factory=dict)
    reason: str = ""

    @property
    def row(self) -> Sequence[str]:
        """The row of the table of results."""
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        took = "" if self.took_s is None else f"{self.took_s:.0f}"
        return (self.name, self.status, f"{self.estimate_s:.0f}", took, figures or self.reason)


def run_items(items: Sequence[Item], seconds: float, folder: Path) -> list[Result]:
    """Run the items that fit into the time, in order; write the results after each one."""
    results: list[Result] = []
    left = seconds
    for item in items:
        command = shlex.join(item.command)
        if item.skip:
            results.append(Result(item.name, command, NOT_RUN, item.estimate_s, reason=item.skip))
        elif item.counted and item.estimate_s > left:
            reason = f"needs about {item.estimate_s:.0f} s, {max(left, 0):.0f} s left"
            results.append(Result(item.name, command, NOT_RUN, item.estimate_s, reason=reason))
        else:
            print(f"{item.name}: {command}", flush=True)
            result = _run(item, folder / item.name, min(item.limit_s, left) if item.counted else item.limit_s)
            print(f"  {result.status} after {result.took_s:.0f} s {result.reason}".rstrip(), flush=True)
            left -= result.took_s if item.counted and result.took_s else 0
            results.append(result)
        write_results(results, folder)
    return results


def write_results(results: Sequence[Result], folder: Path) -> None:
    """Write the results so far, for programs and for people."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    rows = [result.row for result in results]
    (folder / "items.md").write_text(table(("item", "status", "estimate (s)", "took (s)", "figures"), rows) + "\n")


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 if an item failed or reached its limit; an item that did not run is no failure."""
    return int(any(result.status in (FAILED, TIMED_OUT) for result in results))


def _run(item: Item, folder: Path, limit_s: float) -> Result:
    folder.mkdir(parents=True)
    command, log = shlex.join(item.command), folder / "output.log"
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                item.command, cwd=REPO, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return Result(item.name, command, FAILED, item.estimate_s, 0.0, reason=f"cannot start: {error}")
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    took = time.monotonic() - began
    if code is None:
        reason = f"stopped at its limit of {limit_s:.0f} s; see {log}"
        return Result(item.name, command, TIMED_OUT, item.estimate_s, took, reason=reason)
    figures: Figures = {}
    reason = "" if code == 0 else f"exit code {code}; see {log}"
    try:
        figures = item.figures(folder) if item.figures and not code else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"expected its figures in {folder}, got {type(error).__name__}: {error}"
    return Result(item.name, command, FAILED if reason else PASSED, item.estimate_s, took, figures, reason)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command that still runs, so that it can end its hosts' processes; then kill its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
