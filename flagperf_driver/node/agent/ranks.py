"""Follow one round's ranks on this host, from the first start to the last end, and end all their processes.

A starter starts and signals them: in this process (starter.py), or in a container (container.py).
"""

from __future__ import annotations

import json
import signal
from typing import Mapping, NamedTuple, Union

from flagperf_driver import events, layout
from flagperf_driver.node.agent import rank_health
from flagperf_driver.node.agent.container import Container
from flagperf_driver.node.agent.epoch_orders import EpochOrders
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.milestones import SCHEMA
from flagperf_driver.node.agent.starter import RankOrders, Report, Starter
from flagperf_driver.node.agent.state_requests import StateRequests
from flagperf_driver.node.agent.timer import Timer

_TICK_S = 0.2
_HEARTBEAT_S = 0.5
_TRACES_S = 0.7  # time for a rank to write its stacks after SIGUSR1
_KILLED_S = 15.0  # a process that is still alive so long after SIGKILL is stuck in the kernel
_CLEAN_UP_S = 20.0  # time for a container to end after its last rank
_FULL_DISK_BYTES = 1 << 16  # a disk with less free space is considered full
AnyStarter = Union[Starter, Container]


class StartedRank(NamedTuple):
    """A rank whose process was started and is not reaped. It may have ended, or the agent may be ending it."""

    followed: rank_health.FollowedRank
    pid: int  # in its container
    started_ms: int


class Ranks:
    """One round's ranks on this host, from the start of the first to the end of the last.

    All ranks are followed. A rank waits, is started, and then ended. The round is over when no rank waits or is
    started, and the starter is over. From the moment when the agent ends the ranks, ``_ending`` has the cause of each
    rank that had not ended then.
    """

    def __init__(self, orders: RankOrders, messages: Messages, starter: AnyStarter) -> None:
        self._orders = orders
        self._messages = messages
        self._folder = messages.folder
        self._starter = starter
        self._not_confined: str | None = "the ranks were not started"
        self._followed: dict[int, rank_health.FollowedRank] = {}
        self._waiting: list[int] = [order.rank for order in orders.ranks]
        self._started: dict[int, StartedRank] = {}
        self._ending: Mapping[int, str] | None = None
        self._timeouts = rank_health.Timeouts(orders.init_s, orders.hang_s)
        self._for_replay: tuple[StateRequests, EpochOrders] | None = None
        if orders.order_secret is not None:
            epochs = EpochOrders(self._folder, orders.order_secret, self._has_begun)
            messages.watch(epochs.pipe, epochs.read)
            self._for_replay = StateRequests(self._folder.path), epochs
        self._timer = Timer()
        self._timer.every(_TICK_S, lambda _: self._read_logs())
        self._timer.every(_HEARTBEAT_S, self._check_heartbeats)
        self._timer.every(orders.beat_s, lambda _: self._send_beats())

    # -- the round -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return not self._left and self._starter.over

    @property
    def _left(self) -> list[int]:
        """The ranks that have not ended."""
        return [*self._started, *self._waiting]

    def start(self) -> None:
        """Start all ranks; if one cannot be started, end the others."""
        for rank in self._waiting:
            self._followed[rank] = rank_health.FollowedRank(
                rank, self._messages, every_record=not self._followed, show=self._orders.show
            )
        self._starter.start()
        self.process()

    def process(self) -> None:
        """Do everything that is due now; called often, and immediately after a child has ended."""
        reports = self._starter.reports()
        for report in reports:
            self._take(report)
        ended = [self._take_end(report) for report in reports if report["type"] == "ended"]
        if ended:
            self._read_logs()
        # Report first the rank that most probably made the others fail.
        for rank, report in sorted(ended, key=_fault_order):
            self._report_end(rank, report["code"], report["memory"])
        self._timer.run_due_calls()
        if self._for_replay and self._ending is None:
            for part in self._for_replay:
                part.process()
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
        self._starter.abandon()

    def close(self) -> None:
        """Remove what the ranks left, after the end of all processes."""
        self._starter.close()
        for report in self._starter.reports():
            self._take(report)

    def _finish_if_over(self) -> None:
        if self._folder.write_error is not None and self._ending is None:
            self.fail("disk", None, self._folder.write_error)
            self._end_all()
        if self._starter.over:
            self._report_lost()
        if not self._left:
            self._starter.finish(_CLEAN_UP_S)
        if self.over:
            self._read_logs(to_the_end=True)
            ranks = {str(rank): followed.milestones.to_json() for rank, followed in self._followed.items()}
            seen = {"schema": SCHEMA, "ranks": ranks, "not_confined": self._not_confined}
            if self._for_replay:
                states, epochs = self._for_replay
                seen["states"] = {**states.to_json(), "orders": epochs.given}
            self._folder.write(layout.MILESTONE_TIMES, json.dumps(seen) + "\n")

    # -- what the starter reports --------------------------------------------------------------------------

    def _take(self, report: Report) -> None:
        kind = report["type"]
        if kind == "started":
            self._take_start(report)
        elif kind == "not_started":
            self._cannot_start(report["rank"], report["problem"])
        elif kind == "confined":
            self._not_confined = report["problem"]
        elif kind == "warning":
            self._messages.warning(report["sentence"])
        elif kind == "container":
            self._end_with_container(report["sentence"])

    def _take_start(self, report: Report) -> None:
        rank, pid = report["rank"], report["pid"]
        if rank == self._orders.ranks[0].rank:
            self._timer.after(self._orders.round_s, self._on_round_timeout)
        self._waiting.remove(rank)
        self._started[rank] = StartedRank(self._followed[rank], pid, report["started_ms"])
        self._messages.note(f"rank {rank} started, pid {pid}: {json.dumps(report['argv'])}")

    def _cannot_start(self, rank: int, problem: str) -> None:
        self.fail("start", rank, f"rank {rank} could not be started: {problem}")
        self._messages.exit(rank, cause="crash")
        self._waiting = []
        self._end_all()

    def _end_with_container(self, sentence: str) -> None:
        ranks = sorted(self._left)
        names = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}" if ranks else "all ranks"
        self.fail("container", ranks[0] if ranks else None, f"the container of {names} {sentence}")
        self._ending = self._ending or dict.fromkeys(ranks, "crash")

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

    def _has_begun(self) -> bool:
        """Read the first rank's log, and return whether its time counts."""
        first = self._followed[self._orders.ranks[0].rank]
        first.read_log()
        return first.milestones.has(events.TRAIN_START)

    def _check_heartbeats(self, passed_s: float) -> None:
        alive = {number: rank.followed.heartbeat for number, rank in self._started.items()}
        for heartbeat in alive.values():
            heartbeat.read(passed_s)
        if self._ending is None and (hung := rank_health.find_hung_rank(alive, self._timeouts)) is not None:
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
        self._starter.signal(signal.SIGUSR1)
        cause = "hang" if hung.kind == "hang" else "timeout"
        self._end({**dict.fromkeys(self._left, "stopped"), hung.rank: cause}, _TRACES_S)

    # -- the ranks' end ------------------------------------------------------------------------------------

    def _take_end(self, report: Report) -> tuple[StartedRank, Report]:
        rank = self._started.pop(report["rank"])
        rank.followed.read_log(to_the_end=True)
        return rank, report

    def _report_end(self, rank: StartedRank, code: int, memory: str | None) -> None:
        """Report a reaped rank; ``code`` below 0 is the signal that killed it, ``memory`` the one that ran out."""
        if code == 0:
            self._send_exit(rank, 0, None, None)
            return
        self.fail(*self._crash(rank.followed, code, memory))
        exit_code, name = (code, None) if code > 0 else (None, _signal_name(-code))
        self._send_exit(rank, exit_code, name, (self._ending or {}).get(rank.followed.rank, "crash"))
        self._end_all()

    def _crash(self, followed: rank_health.FollowedRank, code: int, memory: str | None) -> tuple[str, int, str]:
        """Return the kind of fault, the rank and the sentence. A rank that cannot write cannot log that either."""
        number, error = followed.rank, followed.error
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {_signal_with_cause(-code, memory)}"
        if error is not None:
            reason = f"{error.value.get('type')}: {_one_line(error.value.get('error'))}"
            return "crash", number, f"rank {number} {how}: {reason}"
        sentence = f"rank {number} {how}: {rank_health.last_error(followed.last_lines()) or 'no output'}"
        if self._folder.free_bytes() < _FULL_DISK_BYTES:
            return "disk", number, f"{sentence}; the disk of {self._folder.path} is full"
        return "crash", number, sentence

    def _end_all(self, cause: str = "stopped") -> None:
        self._end(dict.fromkeys(self._left, cause))

    def _end(self, causes: Mapping[int, str], delay_s: float = 0.0) -> None:
        """End every remaining rank: send SIGTERM, and SIGKILL after the grace period."""
        if self._ending is not None:
            return
        self._ending = causes
        self._timer.after(delay_s, self._terminate)
        self._timer.after(delay_s + self._orders.grace_s, self._kill)
        self._timer.after(delay_s + self._orders.grace_s + _KILLED_S, self._give_up)

    def _terminate(self) -> None:
        self._starter.signal(signal.SIGTERM)
        if not self._started:  # then the container of those that wait need not begin
            self._starter.finish(0)

    def strike(self, rank: int) -> None:
        """Kill a rank, as if somebody did; the agent did not end it."""
        self._starter.signal(signal.SIGKILL, rank)

    def _kill(self) -> None:
        for number in self._started:
            self._messages.note(f"rank {number} ignored SIGTERM and is killed")
        self._starter.signal(signal.SIGKILL)

    def _give_up(self) -> None:
        for number in self._left:
            self._messages.note(f"rank {number} cannot be killed: it is stuck in the kernel")
        self._report_lost()
        self._starter.finish(0)

    def _report_lost(self) -> None:
        """Report the ranks that ended with their container, or cannot be killed."""
        causes, started, waiting = self._ending or {}, self._started, self._waiting
        self._started, self._waiting = {}, []
        for number, rank in started.items():
            self._send_exit(rank, None, None, causes.get(number, "crash"))
        for number in waiting:
            self._messages.exit(number, cause=causes.get(number, "crash"))

    def _send_exit(self, rank: StartedRank, code: int | None, name: str | None, cause: str | None) -> None:
        followed = rank.followed
        self._messages.exit(
            followed.rank,
            code=code,
            signal=name,
            cause=cause,
            pid=rank.pid,
            started_ms=rank.started_ms,
            finished=followed.finished,
            # They explain a failure.
            last_lines=() if code == 0 and followed.finished else followed.last_lines(),
        )


def _fault_order(end: tuple[StartedRank, Report]) -> tuple[bool, bool, float]:
    code, error = end[1]["code"], end[0].followed.error
    return code == 0, code > 0, error.time_ms if error is not None else float("inf")


def _signal_with_cause(number: int, memory: str | None) -> str:
    name = _signal_name(number)
    return name if number != signal.SIGKILL else "{} ({})".format(name, memory or "kill -9 by a user or a program")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _one_line(text: object, longest: int = 400) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    whole = " | ".join(lines)
    return whole if len(whole) <= longest else whole[:longest] + "..."
