"""The output of a run while it runs: permanent lines and, on a terminal, a progress line that is overwritten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flagperf_driver import perflog
from pytest_flagperf.printable import printable
from pytest_flagperf.progress import RoundProgress, Subscriber
from pytest_flagperf.results.figures.units import plain, quantity

from .progress import in_round, progress_line, round_title

CLEAR = "\r\x1b[K"
"""Written alone to remove the progress line, and before its text to replace it."""
_INTERVAL_S = 0.2
_SHARED_INTERVAL_S = 10.0
_EVERY_S = 60.0
"""The longest time without a line in the log of a CI job, while something runs."""
_TRAINING = "training"


class _Lines:
    """Writes permanent lines; those of a worker of pytest-xdist, which shares the terminal, begin with its ``name``."""

    def __init__(
        self, write: Callable[[str], None], name: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._name, self._clock, self._round = write, name, clock, ""
        # The thread of the round, the threads that reach hosts and the ticking thread write.
        self._lock = threading.RLock()

    def line(self, text: str) -> None:
        """Write a permanent line."""
        text = _one_line(text)
        with self._lock:
            self._write(f"[{self._name}] {text}\n" if self._name else f"{text}\n")


def rank_logs(line: Callable[[str], None], *, records: bool) -> Subscriber:
    """Return what writes the lines of the ranks' logs; with ``records`` also their [PerfLog] records."""

    def log(rank: int, text: str) -> None:
        if records or perflog.MARK not in text:
            line(f"[rank {rank}] {text}")

    return {"log": log}


class TerminalLines(_Lines):
    """The output on a terminal; a worker that shares it writes few, permanent lines."""

    def __init__(
        self,
        write: Callable[[str], None],
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        width: int,
    ) -> None:
        super().__init__(write, name, clock)
        self._width = width
        self._is_open, self._shown_at = False, float("-inf")

    @property
    def subscriber(self) -> Subscriber:
        """What writes the notes of the run."""
        return {
            "round": self._begin_round,
            "round_end": self._end_round,
            "progress": lambda progress: self._overwritten(progress_line(progress, self._width - 1)),
            "line": self.line,
            "phase": lambda text, lasting=False: (self.line if lasting else self._overwritten)(text),
            "activity": self._overwritten,
            "phase_end": self._clear,
        }

    def line(self, text: str) -> None:
        with self._lock:
            self._clear()
            super().line(text)

    def _begin_round(self, case: str, folder: str) -> None:
        self._round = round_title(case, folder)

    def _end_round(self, state: str, sentence: str = "") -> None:
        """Write why a round failed."""
        if state == "failed":
            self.line(f"{self._round}  {_end(state, sentence)}")

    def _overwritten(self, text: str) -> None:
        with self._lock:
            now = self._clock()
            if now - self._shown_at < (_SHARED_INTERVAL_S if self._name else _INTERVAL_S):
                return
            self._shown_at = now
            if self._name:
                self.line(text)
            else:
                self._is_open = True
                self._write(CLEAR + _one_line(text)[: self._width - 1])

    def _clear(self) -> None:
        with self._lock:
            if self._is_open:
                self._write(CLEAR)
                self._is_open, self._shown_at = False, float("-inf")


class PlainLines(_Lines):
    """The output without a terminal: a line for each phase, and one a minute."""

    def __init__(
        self, write: Callable[[str], None], name: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(write, name, clock)
        self._activity = ""
        self._since = self._written_at = self._arrived_at = clock()
        self._progress: RoundProgress | None = None
        self._evaluated_at = float("-inf")

    @property
    def subscriber(self) -> Subscriber:
        """What writes the notes of the run."""
        return {
            "round": self._begin_round,
            "progress": self._take_progress,
            "round_end": self._end_round,
            "line": self.line,
            "phase": lambda text, **_: self._phase(in_round(self._round, text)),
            "activity": lambda text: self._remember(in_round(self._round, text)),
            "phase_end": lambda: self._remember(self._round),
            "tick": self._tick,
        }

    def line(self, text: str) -> None:
        with self._lock:
            self._written_at = self._clock()
            super().line(text)

    def _begin_round(self, case: str, folder: str) -> None:
        with self._lock:
            self._round = round_title(case, folder)
            self._phase(f"{self._round}  starting")

    def _phase(self, text: str) -> None:
        with self._lock:
            self._since = self._clock()
            self._remember(text)
            self.line(text)

    def _remember(self, activity: str) -> None:
        """Remember what is done at the moment, for the line of the minute."""
        with self._lock:
            if not self._activity:
                self._since = self._written_at = self._clock()
            self._activity = activity

    def _take_progress(self, progress: RoundProgress) -> None:
        """Write a line at the start of the training, at its first step and, once a minute, at an evaluation."""
        with self._lock:
            now = self._clock()
            before, self._progress, self._arrived_at = self._progress, progress, now
            if not progress.step:
                if progress.phase == _TRAINING and (before is None or before.phase != _TRAINING):
                    self._figures(progress, progress_line(progress))
            elif before is None or not before.step:
                self._evaluated_at = now
                self._figures(progress, progress_line(progress))
            elif progress.metric not in (None, before.metric) and now - self._evaluated_at >= _EVERY_S:
                self._evaluated_at = now
                self._figures(progress, _evaluation(progress))

    def _end_round(self, state: str, sentence: str = "") -> None:
        """Write how a round ended, with its last figures."""
        with self._lock:
            progress, state = self._progress, _end(state, sentence)
            if progress is not None and progress.step:
                self._figures(progress, f"{progress_line(progress, is_running=False)}  {state}")
            else:
                self.line(f"{self._round}  {state}")
            self._round, self._activity, self._progress = "", "", None
            self._evaluated_at = float("-inf")

    def _tick(self) -> None:
        """Write a line if something has run for a minute without one."""
        with self._lock:
            if self._clock() - self._written_at < _EVERY_S:
                return
            if self._progress is not None:
                self._figures(self._progress, progress_line(self._progress))
            elif self._activity:
                self.line(f"{self._activity}  for {quantity(round(self._clock() - self._since), 's')}")

    def _figures(self, progress: RoundProgress, text: str) -> None:
        elapsed_s = progress.elapsed_s + self._clock() - self._arrived_at
        self.line(f"{text}  after {quantity(elapsed_s, 's')}")


def _one_line(text: str) -> str:
    """Return a text of a rank, host or tool without line breaks and control characters."""
    return printable(text).replace("\n", " ")


def _end(state: str, sentence: str) -> str:
    return f"{state}: {sentence}" if sentence else state


def _evaluation(progress: RoundProgress) -> str:
    reached = quantity(progress.metric, digits=3)
    target = "" if progress.target is None else f" of {plain(progress.target, 3)}"
    title = f"{progress.case} round {progress.round}"
    return f"{title}  evaluation: {progress.metric_name} {reached}{target} at step {progress.step:,}"
