"""The ranks while they run: follow their logs, read their heartbeats, and find ranks that hang or are slow."""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Callable, Collection, Iterator, Mapping, NamedTuple, Sequence

from flagperf_driver import events, layout, perflog
from flagperf_driver.heartbeat import DONE, PHASES, TRAIN, Beat, read_heartbeat
from flagperf_driver.node import silence
from flagperf_driver.node.agent.log_bound import LogBound
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.milestones import MILESTONES, Milestones, Moment

_FINAL_EVENTS = (events.FAILED, events.FINISHED)
_READ_BYTES = 1 << 22
_MOST_READS = 8  # at a time
_TAIL_BYTES = 1 << 16
_RECENT_BEATS = 120  # the number of beats, about a minute, from which a rank's pace is computed
_FEWEST_STEPS = 20
_SLOW = 1.3  # times the usual step time
_ERROR_LINE = re.compile(r"^(Fatal Python error: .|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b)")


class LogTail:
    """Follow one log: ``new`` returns the records written since the last call, ``show`` gets complete lines of text."""

    def __init__(
        self, path: Path, events: Collection[str] | None, show: Callable[[list[str]], None] | None = None
    ) -> None:
        self._path = path
        self._reader = perflog.Reader(events=events)
        self.offset = 0
        self._show = show
        self._partial_line = b""
        self.at_the_end = False  # whether the last read reached the end of the log

    def new(self, to_the_end: bool = False) -> Iterator[perflog.Record]:
        """Read at most 32 MiB of the log, so that the agent stays responsive; with ``to_the_end`` all of it."""
        reads = 0
        while reads == 0 or not self.at_the_end:
            yield from self._reader.feed(self._read())
            reads += 1
            if reads == _MOST_READS and not to_the_end:
                break
        if to_the_end:
            yield from self._reader.close()

    def _read(self) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as log:
                log.seek(self.offset)
                data = log.read(_READ_BYTES) or b""
        except OSError:
            data = b""
        self.at_the_end = len(data) < _READ_BYTES
        self.offset += len(data)
        if self._show is not None:
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if lines:
                self._show([line.decode("utf-8", "replace") for line in lines])
        return data


def last_lines(path: Path, count: int = 20) -> list[str]:
    """Return the log's last lines except PerfLog records; of a progress bar, only its last state."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in lines if line.strip() and perflog.MARK not in line][-count:]


def last_error(lines: Sequence[str]) -> str:
    """Return the line that probably names the reason for the end: the last error, else the last line."""
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return (errors or list(lines) or [""])[-1].strip()


class FollowedRank:
    """What the agent reads of one rank: its log, with the milestones and the reason of a failure, and its heartbeat."""

    def __init__(self, rank: int, messages: Messages, *, every_record: bool, show: bool) -> None:
        """With ``every_record`` read all records of the log, otherwise the final ones and the milestones.

        All records of rank 0 are sent, of the other ranks their failure; with ``show`` the log's lines too.
        """
        self.milestones = Milestones(every_record)
        self.error: perflog.Record | None = None
        self.finished = False
        self.rank, self._messages = rank, messages
        self._log = messages.folder.path / layout.rank_log(rank)
        events_to_read = None if every_record else {*_FINAL_EVENTS, *MILESTONES}
        self._tail = LogTail(self._log, events_to_read, self._show if show else None)
        self._bound: LogBound | None = LogBound(self._log)
        self.heartbeat = RankHeartbeat(messages.folder.path / f"rank{rank}.progress")
        with suppress(OSError):  # a heartbeat file of an earlier round would look like a sign of life of this one
            self.heartbeat.path.unlink()

    def read_log(self, to_the_end: bool = False) -> None:
        """Read the new records and send them."""
        begin = Moment.now()
        for record in self._tail.new(to_the_end):
            self.milestones.add(record.event, Moment.now(), record.time_ms)
            if record.event == events.FAILED:
                self.error = self.error or record
            self.finished = self.finished or record.event == events.FINISHED
            if self.rank == 0 or record.event == events.FAILED:
                message = {"event": record.event, "value": dict(record.value), "time_ms": record.time_ms}
                self._messages.send({"type": "perflog", "rank": self.rank, **message})
        if self._tail.at_the_end:
            self.milestones.read_completely(begin)
        if self._bound is not None:
            try:
                self._bound.apply(self._tail.offset)
            except OSError as error:
                self._bound = None
                self._messages.warning(f"{self._log.name} will have all output of its rank: {error.strerror}")

    def last_lines(self) -> list[str]:
        """Return the log's last lines."""
        return last_lines(self._log)

    def _show(self, lines: list[str]) -> None:
        self._messages.send({"type": "lines", "rank": self.rank, "lines": lines})


class RankHeartbeat:
    """One rank's heartbeat, and for how long it has not changed."""

    def __init__(self, path: Path, beat: Beat | None = None, idle_s: float = 0.0) -> None:
        self.path = path
        self.beat = beat
        self.idle_s = idle_s
        self.recent: deque[Beat] = deque(maxlen=_RECENT_BEATS)

    def read(self, passed_s: float) -> None:
        beat = read_heartbeat(self.path)
        moved = beat is not None and (self.beat is None or beat.beats != self.beat.beats)
        self.idle_s = 0.0 if moved else silence.longer(self.idle_s, passed_s)
        self.beat = beat
        if moved and beat is not None and beat.phase == TRAIN and beat.step > 0:
            self.recent.append(beat)

    @property
    def pace_s(self) -> float | None:
        """The recent seconds per step; None after too few steps."""
        if not self.recent:
            return None
        first, last = self.recent[0], self.recent[-1]
        steps = last.step - first.step
        return (last.time - first.time) / steps if steps >= _FEWEST_STEPS else None

    @property
    def step(self) -> int:
        if self.beat is None:
            return -1
        # A rank that is done is ahead of all others.
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
    """The maximum silence of a rank before its first step, and after it."""

    init_s: float
    hang_s: float

    def of(self, heartbeat: RankHeartbeat) -> float:
        return self.init_s if heartbeat.step < 1 else self.hang_s


class HungRank(NamedTuple):
    """A rank that hangs, so that the others wait for it."""

    rank: int
    kind: str
    sentence: str


def find_hung_rank(heartbeats: Mapping[int, RankHeartbeat], limits: Timeouts) -> HungRank | None:
    """Return the rank that hangs, if all the ranks that are furthest behind have been silent for too long.

    The silence of ranks that are ahead does not count: they wait for the others, for example while one rank evaluates.
    """
    if not heartbeats:
        return None
    if any(heartbeat.idle_s <= limits.of(heartbeat) for heartbeat in _furthest_behind(heartbeats).values()):
        return None
    rank = find_suspect(heartbeats)
    kind = "init_timeout" if heartbeats[rank].step < 1 else "hang"
    return HungRank(rank, kind, _silence_sentence(rank, kind, heartbeats, limits))


def find_slow(heartbeats: Mapping[int, RankHeartbeat]) -> dict[str, float]:
    """Return the ranks whose steps take longer than usual, each with the ratio to the usual step time."""
    paces = {rank: heartbeat.pace_s for rank, heartbeat in heartbeats.items()}
    known = sorted(pace for pace in paces.values() if pace)
    if len(known) < 2:
        return {}
    usual = known[(len(known) - 1) // 2]
    return {str(rank): round(pace / usual, 2) for rank, pace in paces.items() if pace and pace > _SLOW * usual}


def find_suspect(heartbeats: Mapping[int, RankHeartbeat]) -> int:
    """Return, of the ranks that are furthest behind, the one in the rarest phase; of several, the most silent one."""
    behind = _furthest_behind(heartbeats)
    phases = Counter(heartbeat.phase for heartbeat in behind.values())
    return min(behind, key=lambda rank: (phases[behind[rank].phase], -behind[rank].idle_s, rank))


def _furthest_behind(heartbeats: Mapping[int, RankHeartbeat]) -> dict[int, RankHeartbeat]:
    lowest = min(heartbeat.step for heartbeat in heartbeats.values())
    return {rank: heartbeat for rank, heartbeat in heartbeats.items() if heartbeat.step == lowest}


def _silence_sentence(rank: int, kind: str, heartbeats: Mapping[int, RankHeartbeat], limits: Timeouts) -> str:
    heartbeat = heartbeats[rank]
    limit = limits.of(heartbeat)
    name = "init_timeout_s" if kind == "init_timeout" else "hang_timeout_s"
    did = "did not reach its first step" if kind == "init_timeout" else "made no progress"
    others = [f"rank {other} {heartbeats[other].where}" for other in sorted(heartbeats) if other != rank]
    beside = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
    return "rank {} {}: silent for {:.1f} s ({} = {:g}), {}{}".format(
        rank, did, heartbeat.idle_s, name, limit, heartbeat.where, "; " + beside if beside else ""
    )
