"""The output of a run while it runs: a progress line that is overwritten, permanent notes, and the live record.

Without a terminal, plain lines replace the progress line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flagperf_driver import perflog
from pytest_flagperf.printable import printable
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.stored import live_record
from pytest_flagperf.stored.live_record import LiveRecord, shortened

from .progress import RoundProgress, in_round, progress_line, round_title

CLEAR = "\r\x1b[K"
"""Written alone to remove the progress line, and before its text to replace it."""
_INTERVAL_S = 0.2
_SHARED_INTERVAL_S = 10.0
_TICK_S = 1.0
_EVERY_S = 60.0
"""The longest time without a line in the log of a CI job, while something runs."""
_TRAINING = "training"


class Live:
    """The output of a run while it runs; ``quiet`` writes nothing to the terminal, only the live record.

    ``follow`` writes what the ranks print, with ``records`` also their [PerfLog] records.
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
        records: bool = False,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._width, self._clock, self._name = write, width, clock, name
        self._live, self._quiet, self.follow = live and not quiet, quiet, follow and not quiet
        self._records = records
        self._plain = None if live or quiet else PlainLines(self._permanent, clock)
        self._shown_at = float("-inf")
        self._open = False
        self._waited_s = 0.0
        self._round = self._phase = ""
        self.record = LiveRecord()
        """The live record in the run's directory; it writes nothing before it gets a path."""
        # The thread of the round, the thread that follows the logs and the ticking thread write.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ticking: threading.Thread | None = None

    def start(self, record: LiveRecord) -> None:
        """Write the live record from now on, and start the thread that writes a sign of life and the minute's line."""
        self.record = record
        if self._ticking is None:
            ticking = threading.Thread(target=self._tick_until_closed, name="flagperf live", daemon=True)
            ticking.start()  # may fail for lack of memory: then close() has no thread to wait for
            self._ticking = ticking

    def close(self) -> None:
        self._closed.set()
        if self._ticking is not None:
            self._ticking.join(_TICK_S)
        self.record.close()

    def tick(self) -> None:
        """Do what is due; called about once a second."""
        with self._lock:
            if self._plain is not None:
                self._plain.tick()
        self.record.beat()

    def note(self, text: str) -> None:
        """Write a permanent line."""
        self.record.write(live_record.NOTE, text=shortened(text))
        self._permanent(text)

    def phase(self, text: str) -> None:
        """Write the start of something that may take long: permanent without a terminal, else overwritten."""
        self._begin_phase(text, self._passing)

    def lasting(self, text: str) -> None:
        """Write the start of something that may take long as a permanent line, such as a wait or a build."""
        self._begin_phase(text, self._permanent)

    def _begin_phase(self, text: str, write: Callable[[str], None]) -> None:
        self._phase = text
        self.record.write(live_record.PHASE, text=shortened(text))
        with self._lock:
            if self._plain is not None:
                self._plain.phase(in_round(self._round, text))
            else:
                write(text)

    def passing(self, text: str) -> None:
        """Write a line that the next line overwrites."""
        self._phase = text
        self.record.write_latest("phase", live_record.PHASE, text=shortened(text))
        with self._lock:
            if self._plain is not None:
                self._plain.activity(in_round(self._round, text))
            self._passing(text)

    def waited(self, seconds: float) -> None:
        """Take note that a round waited for hosts or devices that others used."""
        self._waited_s += seconds

    def take_waited(self) -> float:
        """Return the seconds that rounds have waited since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def begin_round(self, case: str, directory: Path) -> None:
        """Take note that a round begins in a directory."""
        self.record.restart_rates()
        self.record.write(live_record.ROUND, case=case, folder=f"{directory.parent.name}/{directory.name}")
        with self._lock:
            self._round = round_title(case, directory.name)
            if self._plain is not None:
                self._plain.phase(f"{self._round}  starting")

    def end_round(self, state: str, sentence: str = "") -> None:
        """Take note that the round has ended."""
        self.record.write(live_record.ROUND_END, state=state, sentence=shortened(sentence))
        with self._lock:
            if self._plain is not None and self._round:
                self._plain.end_round(self._round, f"{state}: {sentence}" if sentence else state)
            self._round = ""

    def progress(self, progress: RoundProgress) -> None:
        """Show the progress of a round."""
        self.record.write_latest("progress", live_record.PROGRESS, **_recorded(progress))
        with self._lock:
            if self._plain is not None:
                self._plain.progress(progress)
            else:
                self._passing(progress_line(progress, self._width - 1))

    def host(self, host: str, values: Mapping[str, Any]) -> None:
        """Record the ranks, the devices or the load of a host; the terminal does not show them."""
        self.record.write_latest(f"host {host} {' '.join(values)}", live_record.HOST, host=host, **values)

    def log(self, rank: int, text: str) -> None:
        """Write a line of a rank's log if the user follows the logs."""
        if self.follow and (self._records or perflog.MARK not in text):
            self._permanent(f"[rank {rank}] {text}")

    def clear(self) -> None:
        """Clear the line that would be overwritten next: what it shows has ended."""
        if self._phase:
            self._phase = ""
            self.record.write_latest("phase", live_record.PHASE, text="")
        with self._lock:
            if self._plain is not None:
                self._plain.activity(self._round)
            self._clear_line()

    def _clear_line(self) -> None:
        if self._open:
            self._write(CLEAR)
            self._open = False
            self._shown_at = float("-inf")

    def _permanent(self, text: str) -> None:
        if self._quiet:
            return
        text = _one_line(text)
        with self._lock:
            self._clear_line()
            self._write(f"[{self._name}] {text}\n" if self._name else f"{text}\n")
            if self._plain is not None:
                self._plain.written()

    def _passing(self, text: str) -> None:
        with self._lock:
            now = self._clock()
            if not self._live or now - self._shown_at < (_SHARED_INTERVAL_S if self._name else _INTERVAL_S):
                return
            self._shown_at = now
            if self._name:
                self._permanent(text)
            else:
                self._open = True
                self._write(CLEAR + _one_line(text)[: self._width - 1])

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(_TICK_S):
            self.tick()


def _recorded(progress: RoundProgress) -> dict[str, Any]:
    """What the record keeps of it: the line of the round has the case and the round."""
    values = {name: value for name, value in asdict(progress).items() if value is not None}
    return {name: value for name, value in values.items() if name not in ("case", "round")}


def _one_line(text: str) -> str:
    """Return a text of a rank, host or tool without line breaks and control characters."""
    return printable(text).replace("\n", " ")


def silent() -> Live:
    """Return a Live that writes nothing."""
    return Live(lambda _: None, width=80, live=False, quiet=True, follow=False)


class PlainLines:
    """The output without a terminal: a line for each phase, and one a minute; ``tick`` is called once a second."""

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
        elif progress.metric not in (None, before.metric) and now - self._evaluated_at >= _EVERY_S:
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
        if self._clock() - self._written_at < _EVERY_S:
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
