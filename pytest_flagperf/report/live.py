"""What a person at a terminal sees while a round runs: one line that is written over, and notes that stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pytest_flagperf.results.units import plain, quantity

_CLEAR = "\r\x1b[K"
_AT_MOST_EVERY_S = 0.2


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
    model, _, _, nnodes, nproc, _ = progress.case.split(":")
    return "  ".join([f"{model} {nnodes}x{nproc} #{progress.round}", *_figures(progress)])[:width]


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
        yield f"at most {quantity(progress.time_left_s, 's')}"


class Live:
    """Writes to the terminal; quiet, or away from one, it says nothing that would not last."""

    def __init__(
        self,
        write: Callable[[str], None],
        before: Callable[[], None],
        *,
        width: int,
        live: bool,
        quiet: bool,
        follow: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._before, self._width, self._clock = write, before, width, clock
        self._live, self._quiet, self.follow = live and not quiet, quiet, follow and not quiet
        self._shown_at = float("-inf")
        self._open = False

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        self.clear()
        self._before()
        self._write(f"{text}\n")

    def passing(self, text: str) -> None:
        """A line that the next one is written over."""
        now = self._clock()
        if not self._live or now - self._shown_at < _AT_MOST_EVERY_S:
            return
        if not self._open:
            self._before()
            self._open = True
        self._shown_at = now
        self._write(_CLEAR + text[: self._width - 1])

    def progress(self, progress: Progress) -> None:
        """Where a round is."""
        self.passing(line(progress, self._width - 1))

    def log(self, rank: int, text: str) -> None:
        """A line of a rank's log, for those who follow."""
        if self.follow:
            self.note(f"[rank {rank}] {text}")

    def clear(self) -> None:
        """Leave no line half written."""
        if self._open:
            self._write(_CLEAR)
            self._open = False
            self._shown_at = float("-inf")
