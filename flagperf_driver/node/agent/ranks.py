"""Supervision: starts one round's ranks on this host, watches them, and leaves nothing of them behind.

Ranks are tied to the life of this process and of its one thread. A round in a container is supervised in there by an
agent of its own, with the same code: see container.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Mapping, Sequence

from flagperf_driver import events, layout, perflog
from flagperf_driver.node import processes
from flagperf_driver.node.agent import oom, watch
from flagperf_driver.node.agent.messages import Messages, now_ms
from flagperf_driver.node.agent.milestones import MILESTONES, SCHEMA, Milestones, Moment
from flagperf_driver.node.agent.rank_orders import RankOrder, RankOrders
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.sampling import topology

_TICK_S = 0.2
_PULSE_S = 0.5
_BEAT_S = 1.0
_TRACES_S = 0.7  # what a rank gets to write its stacks after SIGUSR1
_KILLED_S = 15.0  # after SIGKILL a process can only be stuck in the kernel
_ROOM_BYTES = 1 << 16  # a disk with less is full
_LAST_WORDS = (events.FAILED, events.FINISHED)


class Process:
    """A rank that was started and has not ended yet."""

    def __init__(self, order: RankOrder, child: subprocess.Popen[bytes], started_ms: int) -> None:
        self.order = order
        self.child = child
        self.started_ms = started_ms
        self.cause: str | None = None  # why it will have ended, where that is known before


class Ranks:
    """One round's ranks on this host, from the first one's start to the last one's end."""

    def __init__(
        self,
        orders: RankOrders,
        messages: Messages,
        reaper: processes.Reaper,
        own: Mapping[str, str],
        inner: bool = False,
    ) -> None:
        self._orders = orders
        self._own = own  # variables that only this host's agent knows, and every rank gets
        self._messages = messages
        self._folder = messages.folder
        self._reaper = reaper
        self._inner = inner
        self._live: dict[int, Process] = {}
        self._errors: dict[int, perflog.Record] = {}
        self._ending = False
        self._first = orders.follow[0]
        self._tails = {rank: self._tail(rank) for rank in orders.follow}
        self._seen: dict[int, Milestones] = {}
        self._pulses = {rank: watch.Pulse(self._path(rank, "progress")) for rank in orders.follow}
        self._timer = Timer()
        self._timer.every(_TICK_S, lambda _: self._stream())
        self._timer.every(_PULSE_S, self._feel_pulses)
        self._timer.every(_BEAT_S, lambda _: self._tell_beats())
        self._memory = oom.count()

    # -- the round -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return not self._live

    def start(self) -> None:
        """Start them all, or end those that were started before one that could not be."""
        self._seen = {rank: Milestones() for rank in self._orders.follow}
        for order in self._orders.ranks:
            if not self._start(order):
                break
        self._timer.after(self._orders.round_s, self._round_is_over)
        self._settle()

    def turn(self) -> None:
        """Do what is to be done now; called often, and at once when a child has ended."""
        self._collect()
        self._timer.do_what_is_due()
        self._settle()

    def end(self, reason: str) -> None:
        """Have all ranks end."""
        self._messages.note(f"told to stop: {reason}")
        self._end("stopped")

    def fail(self, kind: str, rank: int | None, sentence: str) -> None:
        """Tell the fault; it does not end the ranks. What goes wrong at their end is none."""
        if not self._ending:
            self._messages.fault(kind, rank, sentence)

    def abandon(self) -> None:
        """Nothing of any rank may survive, whatever happened to this process."""
        for process in self._live.values():
            processes.kill_session(process.child.pid)

    def _settle(self) -> None:
        if self._folder.trouble is not None and not self._ending:
            self.fail("disk", None, self._folder.trouble)
            self._end("stopped")
        if self.over:
            self._stream(to_the_end=True)
            seen = {str(rank): milestones.to_json() for rank, milestones in self._seen.items()}
            self._folder.write(layout.MILESTONE_TIMES, json.dumps({"schema": SCHEMA, "ranks": seen}) + "\n")

    def _start(self, order: RankOrder) -> bool:
        with suppress(OSError):  # an earlier round's would be taken for this one's sign of life
            self._path(order.rank, "progress").unlink()
        try:
            log = self._folder.path / order.log
            child = processes.spawn(order.argv, self._environment(order), order.cwd, log, self._cores(order))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._cannot_start(order, error)
            return False
        self._reaper.watch(child.pid)
        self._live[order.rank] = Process(order, child, now_ms())
        self._messages.note(f"rank {order.rank} started, pid {child.pid}: {json.dumps(list(order.argv))}")
        self._messages.tell({"type": "started", "rank": order.rank, "pid": child.pid})
        return True

    def _cores(self, order: RankOrder) -> Sequence[int]:
        """Those that it may have: a container or a scheduler may keep others from us."""
        allowed = os.sched_getaffinity(0)
        lacking = [cpu for cpu in order.cpus if cpu not in allowed]
        if lacking:
            whose = f"rank {order.rank} was to be bound to the cores {topology.as_list(order.cpus)}"
            self._messages.warning(f"{whose}; of these this process may not use {topology.as_list(lacking)}")
        return [cpu for cpu in order.cpus if cpu in allowed]

    def _environment(self, order: RankOrder) -> Mapping[str, str]:
        refused = tuple(self._orders.not_inherited)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(refused)}
        return {**kept, **order.env, **self._own}

    def _cannot_start(self, order: RankOrder, error: Exception) -> None:
        what = "{}: {}".format(getattr(error, "filename", None) or order.argv[0], _reason(error))
        self.fail("start", order.rank, f"rank {order.rank} could not be started: {what}")
        self._messages.exit(order.rank, cause="crash")
        self._end("stopped")

    def _round_is_over(self) -> None:
        if self._ending:
            return
        sentence = "the round took longer than {:g} s (round_timeout_s): {}".format(
            self._orders.round_s,
            ", ".join(f"rank {rank} {self._pulses[rank].where}" for rank in self._alive()[:8]),
        )
        self.fail("timeout", next(iter(self._alive()), None), sentence)
        self._end("timeout")

    # -- the ranks' words ----------------------------------------------------------------------------------

    def _tail(self, rank: int) -> watch.LogTail:
        wanted = None if rank == self._first else {*_LAST_WORDS, *MILESTONES}

        def show(lines: list[str]) -> None:
            self._messages.tell({"type": "lines", "rank": rank, "lines": lines}, expendable=True)

        return watch.LogTail(self._folder.path / layout.rank_log(rank), wanted, show if self._orders.show else None)

    def _stream(self, to_the_end: bool = False) -> None:
        for rank in self._tails:
            self._stream_one(rank, to_the_end)

    def _stream_one(self, rank: int, to_the_end: bool = False) -> None:
        tail = self._tails.get(rank)
        if tail is None:
            return
        begin = Moment.now()
        for record in tail.new(to_the_end):
            self._seen[rank].found(record.event, Moment.now())
            if record.event == events.FAILED:
                self._errors.setdefault(rank, record)
            if rank != self._first and record.event not in _LAST_WORDS:
                continue
            self._messages.tell(
                {
                    "type": "perflog",
                    "rank": rank,
                    "event": record.event,
                    "value": dict(record.value),
                    "time_ms": record.time_ms,
                },
                expendable=record.event not in _LAST_WORDS,
            )
        if tail.at_the_end:
            self._seen[rank].looked(begin)

    def _alive(self) -> list[int]:
        """The followed ranks that have not ended: all of a launcher's while it runs."""
        own = {order.rank for order in self._orders.ranks}
        return [rank for rank in self._orders.follow if rank in self._live or rank not in own]

    def _feel_pulses(self, passed_s: float) -> None:
        alive = {rank: self._pulses[rank] for rank in self._alive()}
        for pulse in alive.values():
            pulse.read(passed_s)
        silence = None if self._ending else watch.find_silence(alive, self._orders.limits)
        if silence is not None:
            self._end_silence(silence)

    def _tell_beats(self) -> None:
        ranks = {
            str(rank): {"step": pulse.beat.step, "phase": pulse.beat.phase, "idle_s": round(pulse.idle_s, 2)}
            for rank, pulse in self._pulses.items()
            if pulse.beat is not None
        }
        # Also without any: the controller takes an agent that says nothing for gone.
        if self._messages.heard:
            self._messages.tell(
                {"type": "beat", "ranks": ranks, "slow": watch.find_slow(self._pulses)}, expendable=True
            )

    def _end_silence(self, silence: watch.Silence) -> None:
        lines = watch.last_lines(self._folder.path / layout.rank_log(silence.rank))
        said = f"; its last line: {lines[-1].strip()}" if lines else ""
        self.fail(silence.kind, silence.rank, silence.sentence + said)
        # Of a launcher's ranks it is the launcher that is ours; it may have ended just now.
        process = self._live.get(silence.rank) or next(iter(self._live.values()), None)
        if process is not None:
            process.cause = "hang" if silence.kind == "hang" else "timeout"
        for other in self._live.values():
            processes.signal_session(other.child.pid, signal.SIGUSR1, only_catchers=True)
        self._end("stopped", _TRACES_S)

    # -- the ranks' ends -----------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take in everyone who has ended; of several, the one that dragged the others down is first."""
        gone = [process for process in self._live.values() if processes.has_ended(process.child.pid)]
        for process in gone:
            self._reap(process)
        if gone:
            self._stream()
        for process in sorted(gone, key=self._blame):
            self._ended(process)

    def _reap(self, process: Process) -> None:
        rank = process.order.rank
        processes.kill_session(process.child.pid)
        process.child.wait()
        self._reaper.forget(process.child.pid)
        del self._live[rank]
        self._stream_one(rank, to_the_end=True)

    def _blame(self, process: Process) -> tuple[bool, bool, float]:
        code = process.child.returncode
        error = self._error(process)
        return code == 0, code > 0, error.time_ms if error is not None else float("inf")

    def _ended(self, process: Process) -> None:
        code = process.child.returncode
        if code != 0 and process.cause is None:
            process.cause = "crash"
            if not self._ending:
                self.fail("crash", process.order.rank, self._crash_sentence(process))
        exit_code, name = (code, None) if code >= 0 else (None, _signal_name(-code))
        self._tell_exit(process, exit_code, name, process.cause if code != 0 else None)
        if code != 0:
            self._end("stopped")

    def _crash_sentence(self, process: Process) -> str:
        code = process.child.returncode
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {self._killed(-code)}"
        error = self._error(process)
        if error is None:
            why = watch.last_word(watch.last_lines(self._folder.path / process.order.log))
            return f"rank {process.order.rank} {how}: {why or 'without a word'}{self._no_room()}"
        why = f"{error.value.get('type')}: {_one_line(error.value.get('error'))}"
        if error.rank != process.order.rank:
            return f"rank {error.rank} failed: {why}; its launcher {how}"
        return f"rank {process.order.rank} {how}: {why}"

    def _no_room(self) -> str:
        """That a rank could not write may be all there is to its end, and it could not write that either."""
        full = self._folder.free_bytes() < _ROOM_BYTES
        return f"; the disk of {self._folder.path} is full" if full else ""

    def _error(self, process: Process) -> perflog.Record | None:
        """The process's own last word; a launcher's is that of the first of its ranks to fail."""
        own = {order.rank for order in self._orders.ranks} - {process.order.rank}
        told = [error for rank, error in self._errors.items() if rank not in own]
        return min(told, key=lambda error: error.time_ms, default=None)

    def _killed(self, number: int) -> str:
        name = _signal_name(number)
        if number != signal.SIGKILL:
            return name
        return "{} ({})".format(name, oom.cause(self._memory, self._inner) or "kill -9 by somebody")

    def _end(self, cause: str, delay_s: float = 0.0) -> None:
        """End every rank that is left: SIGTERM, and SIGKILL when the grace is over."""
        if self._ending:
            return
        self._ending = True
        for process in self._live.values():
            process.cause = process.cause or cause
        self._timer.after(delay_s, self._terminate)
        self._timer.after(delay_s + self._orders.grace_s, self._kill)
        self._timer.after(delay_s + self._orders.grace_s + _KILLED_S, self._give_up)

    def _terminate(self) -> None:
        for process in self._live.values():
            processes.signal_session(process.child.pid, signal.SIGTERM)
            # A stopped process takes no signal but SIGKILL until it goes on.
            processes.signal_session(process.child.pid, signal.SIGCONT)

    def _kill(self) -> None:
        for process in self._live.values():
            self._messages.note(f"rank {process.order.rank} ignored SIGTERM and is killed")
            processes.kill_session(process.child.pid)

    def _give_up(self) -> None:
        for process in list(self._live.values()):
            self._messages.note(f"rank {process.order.rank} cannot be killed: it is stuck in the kernel")
            del self._live[process.order.rank]
            self._tell_exit(process, None, None, process.cause)

    def _tell_exit(self, process: Process, code: int | None, name: str | None, cause: str | None) -> None:
        self._messages.exit(
            process.order.rank,
            code=code,
            signal=name,
            cause=cause,
            pid=process.child.pid,
            started_ms=process.started_ms,
            last_lines=watch.last_lines(self._folder.path / process.order.log),
        )

    def _path(self, rank: int, what: str) -> Path:
        return self._folder.path / f"rank{rank}.{what}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _one_line(text: object, longest: int = 400) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    whole = " | ".join(lines)
    return whole if len(whole) <= longest else whole[:longest] + "..."


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
