"""The terminal output during a round: a progress line that is overwritten, and permanent notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pytest_flagperf.case import Case
from pytest_flagperf.printable import printable
from pytest_flagperf.results.units import plain, quantity

_CLEAR = "\r\x1b[K"
_INTERVAL_S = 0.2
_SHARED_INTERVAL_S = 10.0


class RoundProgress(Protocol):
    """The progress of a round; None for values that are not known yet."""

    @property
    def case(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def metric(self) -> float | None: ...
    @property
    def metric_name(self) -> str: ...
    @property
    def target(self) -> float | None: ...
    @property
    def throughput(self) -> float | None: ...
    @property
    def sample_unit(self) -> str: ...
    @property
    def time_left_s(self) -> float | None: ...


def progress_line(progress: RoundProgress, width: int = 1000) -> str:
    """Return step, loss, metric and target, throughput and remaining time in one line of at most ``width`` columns."""
    wide = "  ".join([f"{progress.case} round {progress.round}", *_figures(progress)])
    if len(wide) <= width:
        return wide
    case = Case.parse(progress.case)
    return "  ".join([f"{case.model} {case.shape} #{progress.round}", *_figures(progress)])[:width]


def _figures(progress: RoundProgress) -> Iterator[str]:
    if not progress.step:
        yield progress.phase
        return
    yield f"step {progress.step:,}"
    if progress.loss is not None:
        yield f"loss {plain(progress.loss, 3)}"
    if progress.metric is not None and progress.target is not None:
        yield f"{progress.metric_name} {plain(progress.metric, 3)} of {plain(progress.target, 3)}"
    if progress.throughput is not None:
        yield quantity(progress.throughput, f"{progress.sample_unit}/s", 3)
    if progress.time_left_s is not None:
        yield f"estimated {quantity(progress.time_left_s, 's')} left"


class Live:
    """The output of a run on the terminal; without a terminal only permanent lines are written, and ``quiet`` none.

    A worker that shares the terminal has a ``name`` and writes few, permanent lines.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        width: int,
        live: bool,
        quiet: bool,
        follow: bool,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._width, self._clock, self._name = write, width, clock, name
        self._live, self._quiet, self.follow = live and not quiet, quiet, follow and not quiet
        self._shown_at = float("-inf")
        self._open = False
        # The thread of the round and the thread that follows the logs both write.
        self._lock = threading.RLock()

    def note(self, text: str) -> None:
        """Write a permanent line."""
        if self._quiet:
            return
        text = _one_line(text)
        with self._lock:
            self.clear()
            self._write(f"[{self._name}] {text}\n" if self._name else f"{text}\n")

    def passing(self, text: str) -> None:
        """Write a line that the next line overwrites."""
        with self._lock:
            now = self._clock()
            if not self._live or now - self._shown_at < (_SHARED_INTERVAL_S if self._name else _INTERVAL_S):
                return
            self._shown_at = now
            if self._name:
                self.note(text)
            else:
                self._open = True
                self._write(_CLEAR + _one_line(text)[: self._width - 1])

    def progress(self, progress: RoundProgress) -> None:
        """Show the progress of a round."""
        self.passing(progress_line(progress, self._width - 1))

    def log(self, rank: int, text: str) -> None:
        """Write a line of a rank's log if the user follows the logs."""
        if self.follow:
            self.note(f"[rank {rank}] {text}")

    def clear(self) -> None:
        """Clear the line that would be overwritten next."""
        with self._lock:
            if self._open:
                self._write(_CLEAR)
                self._open = False
                self._shown_at = float("-inf")


def _one_line(text: str) -> str:
    """Return a text of a rank, host or tool without line breaks and control characters."""
    return printable(text).replace("\n", " ")


def silent() -> Live:
    """Return a Live that writes nothing."""
    return Live(lambda _: None, width=80, live=False, quiet=True, follow=False)
