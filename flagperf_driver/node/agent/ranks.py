"""Start one round's ranks on this host, supervise them, and end all their processes.

The kernel kills the ranks when the thread that started them dies with this process. In a container a second agent
does the same with the same code: see container.py.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from flagperf_driver import layout
from flagperf_driver.node import processes
from flagperf_driver.node.agent import oom, rank_health
from flagperf_driver.node.agent.messages import Messages, now_ms
from flagperf_driver.node.agent.milestones import SCHEMA
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.confinement import ConfinedThread, Permissions, shared_memory
from flagperf_driver.node.sampling import topology
from flagperf_driver.node.temporary import Temporary
from flagperf_driver.rank_process import RankProcess

_TICK_S = 0.2
_HEARTBEAT_S = 0.5
_TRACES_S = 0.7  # time for a rank to write its stacks after SIGUSR1
_KILLED_S = 15.0  # a process that is still alive so long after SIGKILL is stuck in the kernel
_FULL_DISK_BYTES = 1 << 16  # a disk with less free space is considered full


class StartedRank(NamedTuple):
    """A rank whose process was started and is not reaped. It may have ended, or the agent may be ending it."""

    followed: rank_health.FollowedRank
    child: subprocess.Popen[bytes]
    started_ms: int


class EndedRank(NamedTuple):
    """A rank whose process is reaped, until its end is reported."""

    started: StartedRank
    code: int  # below 0: the signal that killed the process
    cause: str | None  # None: the agent did not end the rank


class Ranks:
    """One round's ranks on this host, from the start of the first to the end of the last.

    All ranks are followed. A rank is started, and then ended. The round is over when no rank is started.
    From the moment when the agent ends the ranks, ``_ending`` has the cause of each rank that was started then.
    """

    def __init__(
        self,
        orders: RankOrders,
        messages: Messages,
        reaper: processes.Reaper,
        temporary: Temporary,
        own_limit: bool = False,
    ) -> None:
        self._orders = orders
        self._temporary = temporary
        self._not_confined: str | None = None
        self._messages = messages
        self._folder = messages.folder
        self._reaper = reaper
        self._followed: dict[int, rank_health.FollowedRank] = {}
        self._started: dict[int, StartedRank] = {}
        self._ending: Mapping[int, str] | None = None
        self._memory_cause = partial(oom.cause, oom.count(), own_limit)  # own_limit: a memory limit is the container's
        self._timer = Timer()
        self._timer.every(_TICK_S, lambda _: self._read_logs())
        self._timer.every(_HEARTBEAT_S, self._check_heartbeats)
        self._timer.every(orders.beat_s, lambda _: self._send_beats())

    # -- the round -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return not self._started

    def start(self) -> None:
        """Start all ranks; if one cannot be started, end the others."""
        for order in self._orders.ranks:
            self._followed[order.rank] = rank_health.FollowedRank(
                order.rank, self._messages, every_record=not self._followed, show=self._orders.show
            )
        confined = ConfinedThread(self._limits())
        self._not_confined = confined.problem
        for order in self._orders.ranks:
            if not self._start(order, confined):
                break
        self._timer.after(self._orders.round_s, self._on_round_timeout)
        self._finish_if_over()

    def process(self) -> None:
        """Do everything that is due now; called often, and immediately after a child has ended."""
        self._handle_ended()
        self._timer.run_due_calls()
        self._finish_if_over()

    def end(self, reason: str) -> None:
        """End all ranks."""
        self._messages.note(f"stopping the ranks: {reason}")
        self._end_all()

    def fail(self, kind: str, rank: int | None, sentence: str) -> None:
        """Report a fault, which does not end the ranks. While they are being ended, nothing counts as a fault."""
        if self._ending is None:
            self._messages.fault(kind, rank, sentence)

    def abandon(self) -> None:
        """Kill all processes of all ranks, whatever happened to this process."""
        for rank in self._started.values():
            processes.kill_session(rank.child.pid)

    def _finish_if_over(self) -> None:
        if self._folder.write_error is not None and self._ending is None:
            self.fail("disk", None, self._folder.write_error)
            self._end_all()
        if self.over:
            self._read_logs(to_the_end=True)
            ranks = {str(rank): followed.milestones.to_json() for rank, followed in self._followed.items()}
            seen = {"schema": SCHEMA, "ranks": ranks, "not_confined": self._not_confined}
            self._folder.write(layout.MILESTONE_TIMES, json.dumps(seen) + "\n")

    def _start(self, order: RankProcess, confined: ConfinedThread) -> bool:
        try:
            log = self._folder.path / layout.rank_log(order.rank)
            env, cores = order.environment(os.environ, self._temporary.env), self._cores(order)
            child = processes.spawn(order.argv, env, order.cwd, log, cores, confined)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._cannot_start(order, error)
            return False
        self._reaper.guard(child.pid)
        self._started[order.rank] = StartedRank(self._followed[order.rank], child, now_ms())
        self._messages.note(f"rank {order.rank} started, pid {child.pid}: {json.dumps(list(order.argv))}")
        return True

    def _cores(self, order: RankProcess) -> Sequence[int]:
        """Return the ordered cores that this process may use: a container or a scheduler may withhold some."""
        allowed = os.sched_getaffinity(0)
        missing = [cpu for cpu in order.cpus if cpu not in allowed]
        if missing:
            self._messages.warning(
                f"rank {order.rank} should be bound to the cores {topology.as_list(order.cpus)}, "
                f"but this process may not use {topology.as_list(missing)}"
            )
        return [cpu for cpu in order.cpus if cpu in allowed]

    def _limits(self) -> Permissions:
        for path in self._orders.writable:
            with suppress(OSError):  # the rank reports that it cannot use the folder
                Path(path).mkdir(parents=True, exist_ok=True)
        return Permissions(
            writable=[
                str(self._temporary.path),
                str(self._temporary.cache),
                shared_memory.FOLDER,
                *self._orders.writable,
            ],
            without_links=[str(self._folder.path)],
            hidden=[*map(str, self._temporary.others), *self._orders.hidden],
            processes=True,
        )

    def _cannot_start(self, order: RankProcess, error: Exception) -> None:
        problem = "{}: {}".format(getattr(error, "filename", None) or order.argv[0], _reason(error))
        self.fail("start", order.rank, f"rank {order.rank} could not be started: {problem}")
        self._messages.exit(order.rank, cause="crash")
        self._end_all()

    def _on_round_timeout(self) -> None:
        if self._ending is not None:
            return
        places = [f"rank {number} {rank.followed.heartbeat.where}" for number, rank in self._started.items()]
        sentence = f"the round took longer than {self._orders.round_s:g} s (round_timeout_s): {', '.join(places[:8])}"
        self.fail("timeout", next(iter(self._started), None), sentence)
        self._end_all("timeout")

    # -- what the ranks write ------------------------------------------------------------------------------

    def _read_logs(self, to_the_end: bool = False) -> None:
        for followed in self._followed.values():
            followed.read_log(to_the_end)

    def _check_heartbeats(self, passed_s: float) -> None:
        alive = {number: rank.followed.heartbeat for number, rank in self._started.items()}
        for heartbeat in alive.values():
            heartbeat.read(passed_s)
        if self._ending is None and (hung := rank_health.find_hung_rank(alive, self._orders.limits)) is not None:
            self._end_hung(hung)

    def _send_beats(self) -> None:
        heartbeats = {rank: followed.heartbeat for rank, followed in self._followed.items()}
        ranks = {
            str(rank): {"step": beat.step, "phase": beat.phase, "idle_s": round(heartbeat.idle_s, 2)}
            for rank, heartbeat in heartbeats.items()
            if (beat := heartbeat.beat) is not None
        }
        # Sent also without any rank's beat: the controller considers a silent agent lost.
        if self._messages.connected:
            slow = rank_health.find_slow(heartbeats)
            self._messages.tell({"type": "beat", "ranks": ranks, "slow": slow})

    def _end_hung(self, hung: rank_health.HungRank) -> None:
        lines = self._followed[hung.rank].last_lines()
        last_line = f"; its last line: {lines[-1].strip()}" if lines else ""
        self.fail(hung.kind, hung.rank, hung.sentence + last_line)
        for rank in self._started.values():
            processes.signal_session(rank.child.pid, signal.SIGUSR1, only_catchers=True)
        cause = "hang" if hung.kind == "hang" else "timeout"
        self._end({**dict.fromkeys(self._started, "stopped"), hung.rank: cause}, _TRACES_S)

    # -- the ranks' end ------------------------------------------------------------------------------------

    def _handle_ended(self) -> None:
        """Handle the ranks that have ended; report first the rank that most probably made the others fail."""
        exited = [rank for rank in self._started.values() if processes.has_ended(rank.child.pid)]
        ended = [self._reap(rank) for rank in exited]
        if ended:
            self._read_logs()
        for rank in sorted(ended, key=_fault_order):
            self._report_end(rank)

    def _reap(self, rank: StartedRank) -> EndedRank:
        processes.kill_session(rank.child.pid)
        code, number = rank.child.wait(), rank.followed.rank
        self._reaper.forget(rank.child.pid)
        del self._started[number]
        rank.followed.read_log(to_the_end=True)
        return EndedRank(rank, code, (self._ending or {}).get(number))

    def _report_end(self, rank: EndedRank) -> None:
        code = rank.code
        if code == 0:
            self._send_exit(rank.started, 0, None, None)
            return
        if rank.cause is None and self._ending is None:
            self.fail(*self._crash(rank))
        exit_code, name = (code, None) if code > 0 else (None, _signal_name(-code))
        self._send_exit(rank.started, exit_code, name, rank.cause or "crash")
        self._end_all()

    def _crash(self, rank: EndedRank) -> tuple[str, int, str]:
        """Return the kind of fault, the rank and the sentence. A rank that cannot write cannot log that either."""
        followed, code = rank.started.followed, rank.code
        number, error = followed.rank, followed.error
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {self._signal_with_cause(-code)}"
        if error is not None:
            reason = f"{error.value.get('type')}: {_one_line(error.value.get('error'))}"
            return "crash", number, f"rank {number} {how}: {reason}"
        sentence = f"rank {number} {how}: {rank_health.last_error(followed.last_lines()) or 'no output'}"
        if self._folder.free_bytes() < _FULL_DISK_BYTES:
            return "disk", number, f"{sentence}; the disk of {self._folder.path} is full"
        return "crash", number, sentence

    def _signal_with_cause(self, number: int) -> str:
        name = _signal_name(number)
        if number != signal.SIGKILL:
            return name
        return "{} ({})".format(name, self._memory_cause() or "kill -9 by a user or a program")

    def _end_all(self, cause: str = "stopped") -> None:
        self._end(dict.fromkeys(self._started, cause))

    def _end(self, causes: Mapping[int, str], delay_s: float = 0.0) -> None:
        """End every remaining rank: send SIGTERM, and SIGKILL after the grace period."""
        if self._ending is not None:
            return
        self._ending = causes
        self._timer.after(delay_s, self._terminate)
        self._timer.after(delay_s + self._orders.grace_s, self._kill)
        self._timer.after(delay_s + self._orders.grace_s + _KILLED_S, lambda: self._give_up(causes))

    def _terminate(self) -> None:
        for rank in self._started.values():
            processes.signal_session(rank.child.pid, signal.SIGTERM)
            # A stopped process handles SIGTERM only after SIGCONT.
            processes.signal_session(rank.child.pid, signal.SIGCONT)

    def strike(self, rank: int) -> None:
        """Kill a rank, as if somebody did; the agent did not end it."""
        if rank in self._started:
            processes.kill_session(self._started[rank].child.pid)

    def _kill(self) -> None:
        for number, rank in self._started.items():
            self._messages.note(f"rank {number} ignored SIGTERM and is killed")
            processes.kill_session(rank.child.pid)

    def _give_up(self, causes: Mapping[int, str]) -> None:
        stuck, self._started = self._started, {}
        for number, rank in stuck.items():
            self._messages.note(f"rank {number} cannot be killed: it is stuck in the kernel")
            self._send_exit(rank, None, None, causes[number])

    def _send_exit(self, rank: StartedRank, code: int | None, name: str | None, cause: str | None) -> None:
        followed = rank.followed
        self._messages.exit(
            followed.rank,
            code=code,
            signal=name,
            cause=cause,
            pid=rank.child.pid,
            started_ms=rank.started_ms,
            finished=followed.finished,
            # They explain a failure.
            last_lines=() if code == 0 and followed.finished else followed.last_lines(),
        )


def _fault_order(rank: EndedRank) -> tuple[bool, bool, float]:
    code, error = rank.code, rank.started.followed.error
    return code == 0, code > 0, error.time_ms if error is not None else float("inf")


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


class StartError(ValueError):
    """The start message is invalid."""


class RankOrders(NamedTuple):
    """The ranks of the start message and the limits for them."""

    ranks: Sequence[RankProcess]
    limits: rank_health.Timeouts
    round_s: float
    grace_s: float
    beat_s: float  # seconds between two reports of the ranks' progress to the controller
    show: bool  # send every line of the ranks' logs to the controller
    writable: Sequence[str]  # folders that ranks may change besides the round's own
    hidden: Sequence[str]  # folders that ranks may not read: earlier rounds and runs


def read_orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    """Check the start message; raise StartError with the problem."""
    if not body.get("ranks"):
        raise StartError("'ranks' is {}".format("empty" if "ranks" in body else "missing"))
    try:
        return _orders(body, log_dir)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartError(f"{type(error).__name__}: {error}") from error


def _orders(body: Mapping[str, Any], log_dir: Path) -> RankOrders:
    return RankOrders(
        ranks=[RankProcess.from_json(entry, str(log_dir)) for entry in body["ranks"]],
        limits=rank_health.Timeouts(_limit(body.get("init_timeout_s")), _limit(body.get("hang_timeout_s"))),
        round_s=_limit(body.get("round_timeout_s")),
        grace_s=float(body.get("grace_s", 3)),
        beat_s=float(body["beat_s"]),
        show=bool(body.get("show")),
        writable=[str(path) for path in body.get("writable") or ()],
        hidden=[str(path) for path in body.get("hidden") or ()],
    )


def _limit(seconds: object) -> float:
    """Return the limit in seconds; infinity if it is missing."""
    return math.inf if seconds is None else float(str(seconds))
