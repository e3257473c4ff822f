"""The agent: starts one round's ranks on this host, watches them, and leaves nothing behind.

``python -m flagperf_driver.node.agent`` talks JSON lines with its controller: the first line on stdin says
what to start, its end that the controller is gone. One thread does everything: ranks are tied to its life.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from flagperf_driver import events, perflog
from flagperf_driver.node import processes, watch
from flagperf_driver.node.sampler import Sampler

_TICK_S = 0.2
_PULSE_S = 0.5
_BEAT_S = 1.0
_TRACES_S = 0.7  # what a rank gets to write its stacks after SIGUSR1
_KILLED_S = 15.0  # after SIGKILL a process can only be stuck in the kernel
_FAREWELL_S = 5.0  # for a controller that reads slowly
_MOST_UNSENT = 1 << 24


class StartError(ValueError):
    """A start message that cannot be followed."""


@dataclass(frozen=True)
class RankOrder:
    """One process to start."""

    rank: int
    local_rank: int
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str  # its output's file in the log directory
    cpus: Sequence[int] = ()  # the cores it is bound to; empty: any


@dataclass(frozen=True)
class Orders:
    """The start message."""

    log_dir: Path
    ranks: Sequence[RankOrder]
    follow: Sequence[int]  # the ranks whose logs and heartbeats are read: a launcher's, too
    limits: watch.Limits
    round_s: float
    lease_s: float
    sample_s: float
    grace_s: float
    log: str


def read_orders(body: Mapping[str, Any]) -> Orders:
    """The start message, checked; StartError names everything that is wrong."""
    problems = [f"{name!r} is missing" for name in ("log_dir", "ranks") if body.get(name) is None]
    if body.get("op") != "start":
        problems.insert(0, "op is {!r}, the first one must be 'start'".format(body.get("op")))
    if not problems and not body["ranks"]:
        problems.append("'ranks' is empty")
    if problems:
        raise StartError("; ".join(problems))
    try:
        return _orders(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartError(f"{type(error).__name__}: {error}") from error


def _orders(body: Mapping[str, Any]) -> Orders:
    log_dir = Path(body["log_dir"])
    ranks = [_rank_order(entry, log_dir) for entry in body["ranks"]]
    return Orders(
        log_dir=log_dir,
        ranks=ranks,
        follow=sorted(int(rank) for rank in body.get("follow") or [order.rank for order in ranks]),
        limits=watch.Limits(_limit(body.get("init_timeout_s")), _limit(body.get("hang_timeout_s"))),
        round_s=_limit(body.get("round_timeout_s")),
        lease_s=float(body.get("lease_s", 0)),
        sample_s=float(body.get("sample_s", 1)),
        grace_s=float(body.get("grace_s", 3)),
        log=str(body.get("log", "start_task.log")),
    )


def _limit(seconds: object) -> float:
    """A limit that is not given is none."""
    return math.inf if seconds is None else float(str(seconds))


def _rank_order(entry: Mapping[str, Any], log_dir: Path) -> RankOrder:
    rank = int(entry["rank"])
    return RankOrder(
        rank=rank,
        local_rank=int(entry.get("local_rank", rank)),
        argv=[str(word) for word in entry["argv"]],
        env={str(name): str(value) for name, value in entry["env"].items()},
        cwd=str(entry.get("cwd") or log_dir),
        log=str(entry.get("log") or f"rank{rank}.out.log"),
        cpus=[int(cpu) for cpu in entry.get("cpus") or ()],
    )


@dataclass
class Process:
    """A rank that was started and has not ended yet."""

    order: RankOrder
    child: subprocess.Popen[bytes]
    started_ms: int
    cause: str | None = None  # why it will have ended, where that is known before


@dataclass
class Timer:
    """Something to do every so often."""

    every_s: float
    call: Callable[[float], None]
    last: float = field(default_factory=time.monotonic)

    def tick(self, now: float) -> None:
        if now - self.last >= self.every_s:
            passed, self.last = now - self.last, now
            self.call(passed)


class Agent:
    """One round's supervision."""

    def __init__(self, orders: Orders, wire: Wire, janitor: processes.Janitor) -> None:
        self._orders = orders
        self._wire = wire
        self._janitor = janitor
        self._live: dict[int, Process] = {}
        self._errors: dict[int, perflog.Record] = {}
        self._fault = False
        self._ending = False
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._lost = False
        first = orders.follow[0]
        short = [events.FAILED, events.FINISHED]
        self._tails = {
            rank: watch.LogTail(self._path(rank, "out.log"), None if rank == first else short) for rank in orders.follow
        }
        self._pulses = {rank: watch.Pulse(self._path(rank, "progress")) for rank in orders.follow}
        sampler = Sampler(orders.log_dir)
        self._timers = [
            Timer(_TICK_S, lambda _: self._stream()),
            Timer(_PULSE_S, self._feel_pulses),
            Timer(_BEAT_S, lambda _: self._tell_beats()),
            Timer(orders.sample_s, lambda _: sampler.sample()),
        ]
        self._oom_kills = _oom_kills()

    # -- the round -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """From the first rank's start to the last one's end."""
        self._start_all()
        self._after(self._orders.round_s, self._round_is_over)
        while self._live:
            self._wire.wait(_TICK_S / 2)
            self._obey()
            self._collect()
            self._do_what_is_due()
        self._stream(to_the_end=True)

    def abandon(self) -> None:
        """Nothing of any rank may survive, whatever happened to the agent."""
        for process in self._live.values():
            processes.kill_session(process.child.pid)

    def _start_all(self) -> None:
        for order in self._orders.ranks:
            if not self._start(order):
                return

    def _start(self, order: RankOrder) -> bool:
        with suppress(FileNotFoundError):  # an earlier round's would be taken for this one's sign of life
            self._path(order.rank, "progress").unlink()
        try:
            log = self._orders.log_dir / order.log
            child = processes.spawn(order.argv, order.env, order.cwd, log, order.cpus)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._cannot_start(order, error)
            return False
        self._janitor.watch(child.pid)
        self._live[order.rank] = Process(order, child, _now_ms())
        self._note(f"rank {order.rank} started, pid {child.pid}: {json.dumps(list(order.argv))}")
        self._wire.send({"type": "started", "rank": order.rank, "pid": child.pid})
        return True

    def _cannot_start(self, order: RankOrder, error: Exception) -> None:
        what = "{}: {}".format(getattr(error, "filename", None) or order.argv[0], _reason(error))
        self._tell_fault("start", order.rank, f"rank {order.rank} could not be started: {what}")
        self._tell_exit(order, None, None, "crash", _now_ms(), None)
        self._end("stopped")

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for timer in self._timers:
            timer.tick(now)
        ready = [call for when, call in self._due if when <= now]
        self._due = [(when, call) for when, call in self._due if when > now]
        for call in ready:
            call()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, call))

    # -- the controller ------------------------------------------------------------------------------------

    def _obey(self) -> None:
        for message in self._wire.messages():
            if message.get("op") == "stop":
                self._note("told to stop: {}".format(message.get("reason", "no reason given")))
                self._end("stopped")
            else:
                self._note(f"an order that is not known: {message!r}")
        if self._wire.told_to_end:
            self._note("this agent was told to end by a signal")
            self._end("stopped")
        if self._wire.lost and not self._lost:
            self._lost = True
            self._note(f"the controller is gone; its lease runs for {self._orders.lease_s:g} s")
            self._after(self._orders.lease_s, self._lease_is_over)

    def _lease_is_over(self) -> None:
        sentence = f"the controller was lost, and its lease of {self._orders.lease_s:g} s is over (lease_s)"
        self._tell_fault("lost_controller", None, sentence)
        self._end("stopped")

    def _round_is_over(self) -> None:
        if self._ending:
            return
        sentence = "the round took longer than {:g} s (round_timeout_s): {}".format(
            self._orders.round_s,
            ", ".join(f"rank {rank} {self._pulses[rank].where}" for rank in self._alive()[:8]),
        )
        self._tell_fault("timeout", next(iter(self._alive()), None), sentence)
        self._end("timeout")

    # -- the ranks' words ----------------------------------------------------------------------------------

    def _stream(self, to_the_end: bool = False) -> None:
        for rank in self._tails:
            self._stream_one(rank, to_the_end)

    def _stream_one(self, rank: int, to_the_end: bool = False) -> None:
        tail = self._tails.get(rank)
        for record in tail.new(to_the_end) if tail is not None else ():
            if record.event == events.FAILED:
                self._errors.setdefault(rank, record)
            self._wire.send(
                {
                    "type": "perflog",
                    "rank": rank,
                    "event": record.event,
                    "value": dict(record.value),
                    "time_ms": record.time_ms,
                }
            )

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
        self._wire.send({"type": "beat", "ranks": ranks})

    def _end_silence(self, silence: watch.Silence) -> None:
        lines = watch.last_lines(self._path(silence.rank, "out.log"))
        said = f"; its last line: {lines[-1].strip()}" if lines else ""
        self._tell_fault(silence.kind, silence.rank, silence.sentence + said)
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
        self._janitor.forget(process.child.pid)
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
                self._tell_fault("crash", process.order.rank, self._crash_sentence(process))
        exit_code, name = (code, None) if code >= 0 else (None, _signal_name(-code))
        cause = process.cause if code != 0 else None
        self._tell_exit(process.order, exit_code, name, cause, process.started_ms, process.child.pid)
        if code != 0:
            self._end("stopped")

    def _crash_sentence(self, process: Process) -> str:
        code = process.child.returncode
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {self._killed(-code)}"
        error = self._error(process)
        if error is None:
            why = watch.last_word(watch.last_lines(self._orders.log_dir / process.order.log))
            return f"rank {process.order.rank} {how}: {why or 'without a word'}"
        why = f"{error.value.get('type')}: {_one_line(error.value.get('error'))}"
        if error.rank != process.order.rank:
            return f"rank {error.rank} failed: {why}; its launcher {how}"
        return f"rank {process.order.rank} {how}: {why}"

    def _error(self, process: Process) -> perflog.Record | None:
        """The process's own last word; a launcher's is that of the first of its ranks to fail."""
        own = {order.rank for order in self._orders.ranks} - {process.order.rank}
        told = [error for rank, error in self._errors.items() if rank not in own]
        return min(told, key=lambda error: error.time_ms, default=None)

    def _killed(self, number: int) -> str:
        name = _signal_name(number)
        if number != signal.SIGKILL:
            return name
        struck = _oom_kills() > self._oom_kills
        return name + (" (the kernel ran out of memory)" if struck else " (kill -9 by somebody)")

    def _end(self, cause: str, delay_s: float = 0.0) -> None:
        """End every rank that is left: SIGTERM, and SIGKILL when the grace is over."""
        if self._ending:
            return
        self._ending = True
        for process in self._live.values():
            process.cause = process.cause or cause
        self._after(delay_s, self._terminate)
        self._after(delay_s + self._orders.grace_s, self._kill)
        self._after(delay_s + self._orders.grace_s + _KILLED_S, self._give_up)

    def _terminate(self) -> None:
        for process in self._live.values():
            processes.signal_session(process.child.pid, signal.SIGTERM)
            # A stopped process takes no signal but SIGKILL until it goes on.
            processes.signal_session(process.child.pid, signal.SIGCONT)

    def _kill(self) -> None:
        for process in self._live.values():
            self._note(f"rank {process.order.rank} ignored SIGTERM and is killed")
            processes.kill_session(process.child.pid)

    def _give_up(self) -> None:
        for process in list(self._live.values()):
            self._note(f"rank {process.order.rank} cannot be killed: it is stuck in the kernel")
            del self._live[process.order.rank]
            self._tell_exit(process.order, None, None, process.cause, process.started_ms, process.child.pid)

    # -- reports -------------------------------------------------------------------------------------------

    def _tell_fault(self, kind: str, rank: int | None, sentence: str) -> None:
        if self._fault or self._ending:
            return
        self._fault = True
        self._note(f"{kind}: {sentence}")
        self._wire.send({"type": "fault", "kind": kind, "rank": rank, "sentence": sentence})

    def _tell_exit(
        self,
        order: RankOrder,
        code: int | None,
        name: str | None,
        cause: str | None,
        started_ms: int,
        pid: int | None,
    ) -> None:
        end = {"rank": order.rank, "code": code, "signal": name, "cause": cause}
        times = {"pid": pid, "started_ms": started_ms, "ended_ms": _now_ms()}
        _write_whole(self._path(order.rank, "exit.json"), json.dumps({**end, **times}) + "\n")
        self._note(f"rank {order.rank} ended: code {code}, signal {name}, cause {cause}")
        lines = watch.last_lines(self._orders.log_dir / order.log)
        self._wire.send({"type": "exit", **end, "last_lines": lines})

    def _path(self, rank: int, what: str) -> Path:
        return self._orders.log_dir / f"rank{rank}.{what}"

    def _note(self, text: str) -> None:
        note(self._orders.log_dir / self._orders.log, text)


class Wire:
    """JSON lines from and to the controller; it never blocks, whether the controller reads or not."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.lost = False
        self.told_to_end = False
        self._in = incoming
        self._out = outgoing
        self._unread = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()
        os.set_blocking(outgoing, False)
        self._listen(incoming, self._take)
        self._wake = self._wake_on_signals()

    def _listen(self, handle: int, call: Callable[[], None]) -> None:
        try:
            self._selector.register(handle, selectors.EVENT_READ, call)
        except PermissionError:  # a plain file is always ready, and is read to its end at once
            while not self.lost:
                call()

    def _wake_on_signals(self) -> int:
        """A signal, a child's end above all, ends the wait at once."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told_to_end", True))
        # Ctrl-C and a closed terminal are the controller's to judge; if it dies of them, stdin ends.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, lambda: _drain(reader))
        return reader

    def wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()
        self._flush()

    def first_message(self) -> dict[str, Any]:
        """The controller's first line; StartError when it ends before."""
        while not self._messages:
            if self.lost or self.told_to_end:
                raise StartError("the controller was gone before it said what to start")
            self.wait(1.0)
        return self._messages.popleft()

    def messages(self) -> Sequence[dict[str, Any]]:
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def send(self, message: Mapping[str, Any]) -> None:
        if len(self._unsent) > _MOST_UNSENT and message["type"] in ("perflog", "beat"):
            return  # nobody has read for long; the logs hold it all
        self._unsent += json.dumps(message).encode() + b"\n"
        self._flush()

    def close(self) -> None:
        """Send what is left, as long as somebody reads it."""
        deadline = time.monotonic() + _FAREWELL_S
        while self._unsent and time.monotonic() < deadline:
            self._flush()
            if self._unsent:
                time.sleep(0.01)

    def _take(self) -> None:
        try:
            piece = os.read(self._in, 1 << 16)
        except OSError:
            piece = b""
        if not piece:
            self.lost = True
            with suppress(KeyError):
                self._selector.unregister(self._in)
        lines = (self._unread + piece).split(b"\n")
        self._unread = lines.pop()
        self._messages.extend(_message(line) for line in lines if line.strip())

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._out, self._unsent[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:  # nobody holds the other end: stdin will say so, too
            self._unsent.clear()


def _message(line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except ValueError:
        return {"op": None, "line": line[:200].decode("utf-8", "replace")}
    return body if isinstance(body, dict) else {"op": None, "line": body}


def _drain(handle: int) -> None:
    try:
        while os.read(handle, 4096):
            pass
    except BlockingIOError:
        pass


def note(path: Path, text: str) -> None:
    """A line in the agent's own log."""
    with path.open("a") as log:
        log.write("{} {}\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), text))


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name("." + path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def _oom_kills() -> int:
    """How often the kernel has killed for want of memory since boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _supervise(wire: Wire, janitor: processes.Janitor) -> None:
    orders = read_orders(wire.first_message())
    orders.log_dir.mkdir(parents=True, exist_ok=True)
    agent = Agent(orders, wire, janitor)
    try:
        agent.run()
    except Exception as error:  # a host's work ends here; the controller must hear why
        note(orders.log_dir / orders.log, traceback.format_exc())
        wire.send(_start_fault(f"the agent failed: {type(error).__name__}: {error}"))
        traceback.print_exc()
    finally:
        agent.abandon()


def _start_fault(sentence: str) -> dict[str, Any]:
    return {"type": "fault", "kind": "start", "rank": None, "sentence": sentence}


def main() -> int:
    # The protocol gets a descriptor of its own: a stray print must not fall into it.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    processes.adopt_orphans()
    janitor = processes.Janitor()
    wire = Wire(0, outgoing)
    try:
        _supervise(wire, janitor)
    except (StartError, OSError) as error:
        wire.send(_start_fault(f"the agent could not start: {error}"))
    processes.kill_children(besides=janitor.pid)
    janitor.dismiss()
    wire.send({"type": "end"})
    wire.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
