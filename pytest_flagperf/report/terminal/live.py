"""What a person at a terminal sees while a round runs: one line that is written over, and notes that stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pytest_flagperf.case import Case
from pytest_flagperf.printable import printable
from pytest_flagperf.results.units import plain, quantity

_CLEAR = "\r\x1b[K"
_AT_MOST_EVERY_S = 0.2
_SHARED_EVERY_S = 10.0


class Progress(Protocol):
    """Where a round is; what is not known yet is None."""

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


def line(progress: Progress, width: int = 1000) -> str:
    """Step, loss, metric against target, throughput and time left, in one line of at most ``width``."""
    wide = "  ".join([f"{progress.case} round {progress.round}", *_figures(progress)])
    if len(wide) <= width:
        return wide
    case = Case.parse(progress.case)
    return "  ".join([f"{case.model} {case.shape} #{progress.round}", *_figures(progress)])[:width]


def _figures(progress: Progress) -> Iterator[str]:
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
    """Writes to the terminal; quiet, or away from one, it says nothing that would not last.

    One of several who share a terminal has a ``name`` and nothing to write over: it says lines that stay, and few.
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
        # Two threads come here: the round's, and the one that follows the logs.
        self._lock = threading.RLock()

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        text = _one_line(text)
        with self._lock:
            self.clear()
            self._write(f"[{self._name}] {text}\n" if self._name else f"{text}\n")

    def passing(self, text: str) -> None:
        """A line that the next one is written over."""
        with self._lock:
            now = self._clock()
            if not self._live or now - self._shown_at < (_SHARED_EVERY_S if self._name else _AT_MOST_EVERY_S):
                return
            self._shown_at = now
            if self._name:
                self.note(text)
            else:
                self._open = True
                self._write(_CLEAR + _one_line(text)[: self._width - 1])

    def progress(self, progress: Progress) -> None:
        """Where a round is."""
        self.passing(line(progress, self._width - 1))

    def log(self, rank: int, text: str) -> None:
        """A line of a rank's log, for those who follow."""
        if self.follow:
            self.note(f"[rank {rank}] {text}")

    def clear(self) -> None:
        """Leave no line half written."""
        with self._lock:
            if self._open:
                self._write(_CLEAR)
                self._open = False
                self._shown_at = float("-inf")


def _one_line(text: str) -> str:
    """The text of a rank, a host or a tool: nothing in it moves the cursor or begins a line of its own."""
    return printable(text).replace("\n", " ")


def silent() -> Live:
    """One that says nothing, for a run that nobody watches."""
    return Live(lambda _: None, width=80, live=False, quiet=True, follow=False)
