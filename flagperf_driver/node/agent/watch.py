"""What the agent sees of its ranks: their logs as they grow, their heartbeats, and who fell behind."""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Callable, Collection, Iterator, Mapping, NamedTuple, Sequence

from flagperf_driver import perflog
from flagperf_driver.heartbeat import DONE, PHASES, TRAIN, Beat, read_heartbeat

_AT_ONCE = 1 << 22
_TAIL = 1 << 16
# A pause of the agent itself (a frozen host, a debugger) is not a rank's silence.
_LONGEST_TICK_S = 2.0
_RECENT = 120  # beats by which a rank's pace is judged: a minute of them
_FEWEST_STEPS = 20
_SLOW = 1.3
_SAYS_WHY = re.compile(r"^(Fatal Python error: .|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b)")


class LogTail:
    """Follows one log; ``new`` gives the records written since the last call, ``show`` gets whole lines of text."""

    def __init__(
        self, path: Path, events: Collection[str] | None, show: Callable[[list[str]], None] | None = None
    ) -> None:
        self._path = path
        self._reader = perflog.Reader(events=events)
        self._at = 0
        self._show = show
        self._begun = b""  # of a line
        self.at_the_end = False  # whether the last look came to the end of what was there

    def new(self, to_the_end: bool = False) -> Iterator[perflog.Record]:
        """At most 4 MiB of the log, so that the agent stays quick; all of it with ``to_the_end``."""
        piece = self._read()
        yield from self._reader.feed(piece)
        while to_the_end and piece:
            piece = self._read()
            yield from self._reader.feed(piece)
        if to_the_end:
            yield from self._reader.close()

    def _read(self) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as log:
                log.seek(self._at)
                piece = log.read(_AT_ONCE) or b""
        except OSError:
            piece = b""
        self.at_the_end = len(piece) < _AT_ONCE
        self._at += len(piece)
        if self._show is not None:
            *whole, self._begun = (self._begun + piece).split(b"\n")
            if whole:
                self._show([line.decode("utf-8", "replace") for line in whole])
        return piece


def last_lines(path: Path, count: int = 20) -> list[str]:
    """The log's last lines that are no PerfLog lines; a progress bar's line counts by its last state."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL))
            text = log.read(_TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in lines if line.strip() and perflog.MARK not in line][-count:]


def last_word(lines: Sequence[str]) -> str:
    """The line that says why it ended: the last error's, else the last one."""
    reasons = [line for line in lines if _SAYS_WHY.match(line)]
    return (reasons or list(lines) or [""])[-1].strip()


class Pulse:
    """One rank's sign of life."""

    def __init__(self, path: Path, beat: Beat | None = None, idle_s: float = 0.0) -> None:
        self.path = path
        self.beat = beat
        self.idle_s = idle_s
        self.recent: deque[Beat] = deque(maxlen=_RECENT)

    def read(self, passed_s: float) -> None:
        beat = read_heartbeat(self.path)
        moved = beat is not None and (self.beat is None or beat.beats != self.beat.beats)
        self.idle_s = 0.0 if moved else self.idle_s + min(passed_s, _LONGEST_TICK_S)
        self.beat = beat
        if moved and beat is not None and beat.phase == TRAIN and beat.step > 0:
            self.recent.append(beat)

    @property
    def pace_s(self) -> float | None:
        """Seconds a step lately; None where there were too few."""
        if not self.recent:
            return None
        first, last = self.recent[0], self.recent[-1]
        steps = last.step - first.step
        return (last.time - first.time) / steps if steps >= _FEWEST_STEPS else None

    @property
    def step(self) -> int:
        if self.beat is None:
            return -1
        # One that is done waits for nobody; it is ahead of all.
        return self.beat.step if self.beat.phase != DONE else sys.maxsize

    @property
    def phase(self) -> int:
        return self.beat.phase if self.beat is not None else 0

    @property
    def where(self) -> str:
        if self.beat is None:
            return "before its first beat"
        phase = PHASES[self.phase] if self.phase < len(PHASES) else f"phase {self.phase}"
        return "done" if self.phase == DONE else f"at step {self.step} in {phase}"


class Timeouts(NamedTuple):
    """How long a rank may be silent: up to its first step, and after it."""

    init_s: float
    hang_s: float

    def of(self, pulse: Pulse) -> float:
        return self.init_s if pulse.step < 1 else self.hang_s


class Silence(NamedTuple):
    """The rank that everyone waits for."""

    rank: int
    kind: str
    sentence: str


def find_silence(pulses: Mapping[int, Pulse], limits: Timeouts) -> Silence | None:
    """Who hangs, if somebody does: the ranks furthest behind are all silent for too long.

    Those ahead are only waiting for them, so their silence alone is none: one rank may evaluate for all.
    """
    if not pulses:
        return None
    lowest = min(pulse.step for pulse in pulses.values())
    behind = {rank: pulse for rank, pulse in pulses.items() if pulse.step == lowest}
    if any(pulse.idle_s <= limits.of(pulse) for pulse in behind.values()):
        return None
    rank = _odd_one(behind)
    kind = "init_timeout" if pulses[rank].step < 1 else "hang"
    return Silence(rank, kind, _silence_sentence(rank, kind, pulses, limits))


def find_slow(pulses: Mapping[int, Pulse]) -> dict[str, float]:
    """The ranks whose steps take longer than most ranks' do, and how many times as long."""
    paces = {rank: pulse.pace_s for rank, pulse in pulses.items()}
    known = sorted(pace for pace in paces.values() if pace)
    if len(known) < 2:
        return {}
    usual = known[(len(known) - 1) // 2]
    return {str(rank): round(pace / usual, 2) for rank, pace in paces.items() if pace and pace > _SLOW * usual}


def _odd_one(behind: Mapping[int, Pulse]) -> int:
    """The rank in the rarest phase, then the one that is silent for longest."""
    phases = Counter(pulse.phase for pulse in behind.values())
    return min(behind, key=lambda rank: (phases[behind[rank].phase], -behind[rank].idle_s, rank))


def _silence_sentence(rank: int, kind: str, pulses: Mapping[int, Pulse], limits: Timeouts) -> str:
    pulse = pulses[rank]
    limit = limits.of(pulse)
    name = "init_timeout_s" if kind == "init_timeout" else "hang_timeout_s"
    did = "did not reach its first step" if kind == "init_timeout" else "made no progress"
    others = [f"rank {other} {pulses[other].where}" for other in sorted(pulses) if other != rank]
    beside = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
    return "rank {} {}: silent for {:.1f} s ({} = {:g}), {}{}".format(
        rank, did, pulse.idle_s, name, limit, pulse.where, "; " + beside if beside else ""
    )
