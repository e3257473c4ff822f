"""The output of a run without a terminal, as in the log of a CI job: a line for each phase, and one a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_flagperf.results.figures.units import plain, quantity

from .progress import RoundProgress, progress_line

EVERY_S = 60.0
"""The longest time without a line while something runs."""
_TRAINING = "training"


class PlainLines:
    """Writes lines about the phases of a run; ``tick`` is called about once a second and writes a line a minute."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._activity = ""
        self._since = self._written_at = self._arrived_at = clock()
        self._progress: RoundProgress | None = None
        self._evaluated_at = float("-inf")

    def phase(self, text: str) -> None:
        """Write the start of something that may take long, such as a build."""
        self._since = self._clock()
        self.activity(text)
        self._line(text)

    def activity(self, text: str) -> None:
        """Remember what is done at the moment, for the line of the minute."""
        if not self._activity:
            self._since = self._written_at = self._clock()
        self._activity = text

    def progress(self, progress: RoundProgress) -> None:
        """Write a line at the start of the training, at its first step and, once a minute, at an evaluation."""
        now = self._clock()
        before, self._progress, self._arrived_at = self._progress, progress, now
        if not progress.step:
            if progress.phase == _TRAINING and (before is None or before.phase != _TRAINING):
                self._figures(progress, progress_line(progress))
        elif before is None or not before.step:
            self._evaluated_at = now
            self._figures(progress, progress_line(progress))
        elif progress.metric not in (None, before.metric) and now - self._evaluated_at >= EVERY_S:
            self._evaluated_at = now
            self._figures(progress, _evaluation(progress))

    def end_round(self, title: str, state: str) -> None:
        """Write how a round ended, with its last figures."""
        progress = self._progress
        if progress is not None and progress.step:
            self._figures(progress, f"{progress_line(progress, is_running=False)}  {state}")
        else:
            self._line(f"{title}  {state}")
        self.clear()

    def clear(self) -> None:
        """Forget what was done: it has ended."""
        self._activity, self._progress = "", None
        self._evaluated_at = float("-inf")

    def tick(self) -> None:
        """Write a line if something has run for a minute without one."""
        if self._clock() - self._written_at < EVERY_S:
            return
        if self._progress is not None:
            self._figures(self._progress, progress_line(self._progress))
        elif self._activity:
            self._line(f"{self._activity}  for {quantity(round(self._clock() - self._since), 's')}")

    def written(self) -> None:
        """Take note of a line that was written by others."""
        self._written_at = self._clock()

    def _figures(self, progress: RoundProgress, text: str) -> None:
        elapsed_s = progress.elapsed_s + self._clock() - self._arrived_at
        self._line(f"{text}  after {quantity(elapsed_s, 's')}")

    def _line(self, text: str) -> None:
        self._written_at = self._clock()
        self._write(text)


def _evaluation(progress: RoundProgress) -> str:
    reached = quantity(progress.metric, digits=3)
    target = "" if progress.target is None else f" of {plain(progress.target, 3)}"
    title = f"{progress.case} round {progress.round}"
    return f"{title}  evaluation: {progress.metric_name} {reached}{target} at step {progress.step:,}"
