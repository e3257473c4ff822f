"""The agent: supervise one round on one host for a controller.

Start it with ``python -m flagperf_driver.node.agent.main``. The controller sends orders as JSON lines on stdin; the
agent replies on stdout. If that connection breaks, the controller can attach again through a socket (connections.py).
The agent ends when the controller has collected everything, or has been unreachable for longer than the lease.
The agent does its work in one thread; another, which is confined, starts the ranks (confinement.py).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable

from flagperf_driver.node import device_lease, processes
from flagperf_driver.node.agent import caches, log_bound
from flagperf_driver.node.agent.archive import Archive, LogLimits, pack, pack_summary
from flagperf_driver.node.agent.connections import ControllerLink, Message, MessageConnection, error_message
from flagperf_driver.node.agent.container import Container
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.ranks import Ranks
from flagperf_driver.node.agent.sampler_process import SamplerProcess, inherited_variables
from flagperf_driver.node.agent.starter import Starter, read_orders
from flagperf_driver.node.agent.timer import Timer, now_ms
from flagperf_driver.node.confinement import shared_memory
from flagperf_driver.node.deployed_code import CODE_ROOT
from flagperf_driver.node.folder import SOCKET, STATE, FolderError, LogFolder, default_folder
from flagperf_driver.node.sampling import series, topology
from flagperf_driver.ports import free_port

_TICK_S = 0.1
_BEAT_S = 1.0
_NOT_STARTED_S = 20.0  # maximum wait for a controller that was lost before the ranks were started
_LEFT = "its controller left"


class OrderRefused(Exception):
    """The order cannot be followed; the text is the reason."""


class AgentRound:
    """One round, from the lease of its devices to the last byte of its logs."""

    def __init__(self, folder: LogFolder, link: ControllerLink, lock: int) -> None:
        self.folder = folder
        self.over = False
        self._link = link
        self._messages = Messages(folder, link)
        self._lock = lock  # on the folder
        self._lease: device_lease.Lease | None = None
        self._reaper: processes.Reaper | None = None
        self._caches: processes.BackgroundTask | None = None
        self._sampler: SamplerProcess | None = None
        self._ranks: Ranks | None = None
        self._archives: dict[str, Archive] = {}  # by what they contain
        self._started_ns = 0
        self._timer = Timer()
        self._timer.every(_BEAT_S, lambda _: self._messages.alive())
        self._samples = series.LatestSamples(folder.path)
        self._sample_timer = Timer()
        folder.update_state()

    @property
    def started(self) -> bool:
        """Whether the controller has sent the order to start the ranks."""
        return self._reaper is not None

    @property
    def waiting(self) -> bool:
        """Whether the round holds devices for ranks that are not started yet."""
        return self._lease is not None and not self.started

    @property
    def running(self) -> bool:
        return self._reaper is not None and not self.over

    # -- devices -------------------------------------------------------------------------------------------

    def take_devices(self, order: Message) -> Message:
        """Try once to lease devices; reply with the leased devices or with their holders."""
        if self._lease is not None or self._reaper is not None:
            raise OrderRefused("this agent already has a lease")
        directory = Path(order["directory"]) if order.get("directory") else device_lease.default_directory()
        self._lease = device_lease.take(
            int(order["count"]),
            candidates=[int(device) for device in order["candidates"]],
            whole_host=bool(order.get("whole_host")),
            owner=dict(order.get("owner") or {}),
            directory=directory,
        )
        if self._lease is not None:
            return {"type": "leased", "devices": list(self._lease.devices)}
        holders = device_lease.holders(directory) or ["another process took devices at the same moment"]
        return {"type": "busy", "holders": holders}

    def release_devices(self) -> Message:
        if self.running:
            raise OrderRefused("the ranks still use the devices")
        self._release()
        return {"type": "released"}

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    # -- ranks ---------------------------------------------------------------------------------------------

    def start(self, order: Message) -> None:
        if self._reaper is not None:
            raise OrderRefused("this agent has already started its round")
        self.folder.log = str(order.get("log", "start_task.log"))
        self.folder.update_state(state="running", started_ms=now_ms())
        # By the clock of files, which is a few milliseconds behind.
        self._started_ns = (self.folder.path / STATE).stat().st_mtime_ns
        # The reaper keeps the locks: devices are not free while it still kills remaining processes of the ranks.
        locks = [*(self._lease.fds if self._lease is not None else ()), self._lock]
        self._reaper = processes.Reaper(locks)
        self._reaper.guard_shared_memory(self._started_ns)
        try:
            self._ranks = self._prepare(order, self._reaper)
        except (ValueError, OSError) as error:
            self._messages.fault("start", None, f"invalid start message: {error}")
            self._end()
            return
        if self._caches is None:
            self._ranks.start()

    def _prepare(self, order: Message, reaper: processes.Reaper) -> Ranks:
        """Prepare everything that the ranks need before they start."""
        for name, content in dict(order.get("files") or {}).items():
            (self.folder.path / name).write_text(content, "utf-8")
        orders = read_orders(order, self.folder.path)
        if order.get("clear_caches"):
            self._caches = processes.BackgroundTask(caches.clear)
        if order.get("monitors"):
            # Ranks in a container of Docker inherit only what the image has.
            variables = "" if (order.get("container") or {}).get("socket") else inherited_variables(orders.ranks[0])
            self._sampler = SamplerProcess({**order["monitors"], "variables": variables}, self._messages.warning)
            self._sample_timer.every(float(order["samples_s"]), lambda _: self._messages.samples(self._samples.read()))
        in_container = bool(order.get("container"))
        starter = Container(order, self.folder, reaper) if in_container else Starter(orders, self.folder.path, reaper)
        return Ranks(orders, self._messages, starter)

    def stop(self, reason: str) -> None:
        """End the ranks, if they were started."""
        if self._caches is not None:
            self._end()
        elif self._ranks is not None and not self._ranks.over:
            self._ranks.end(reason)

    def strike(self, rank: int | None) -> None:
        """Kill a rank, or everything of the round, as --drill asks."""
        if rank is None:
            os.kill(os.getpid(), signal.SIGKILL)  # the ranks die with this process
        elif self._ranks is not None:
            self._ranks.strike(rank)

    def fail(self, kind: str, sentence: str) -> None:
        """Report a fault that does not belong to a rank."""
        if self._ranks is not None and self.running:
            self._ranks.fail(kind, None, sentence)

    def process(self) -> None:
        """Do everything that is due now; called often, and immediately after input or the end of a process."""
        try:
            if self.running:
                self._process_ranks()
            for archive in self._archives.values():
                for reply in archive.replies():
                    self._link.reply(reply)
        except Exception as error:  # the controller must receive the reason
            self._give_up(error)

    def _process_ranks(self) -> None:
        assert self._ranks is not None
        if self._caches is not None:
            self._start_when_cleared(self._ranks, self._caches)
        elif not self._ranks.over:
            self._ranks.process()
        over = self._caches is None and self._ranks.over  # not while ranks wait for the caches to be cleared
        if self._sampler is not None:
            if over:
                self._sampler.end()
            self._sampler.process()
            self._sample_timer.run_due_calls()
        if over and (self._sampler is None or self._sampler.ended):
            self._end()

    def _start_when_cleared(self, ranks: Ranks, caches: processes.BackgroundTask) -> None:
        if not caches.ended():  # a terabyte of page cache takes minutes
            self._timer.run_due_calls()
            return
        self._caches = None
        try:
            caches.result()
        except RuntimeError as error:
            self._messages.warning(f"the host's caches could not be cleared: {error}")
        ranks.start()

    def _give_up(self, error: Exception) -> None:
        import traceback  # slow to import, and needed only here

        self._messages.note(traceback.format_exc())
        self._messages.fault("agent", None, f"the agent failed: {type(error).__name__}: {error}")
        self._archives = {}
        if self.running:
            self._end()

    def _end(self) -> None:
        """Kill all remaining processes, release all locks, and report that the round is over."""
        for part in (self._ranks, self._sampler):
            if part is not None:
                part.abandon()
        assert self._reaper is not None
        processes.kill_children(except_pid=self._reaper.pid)
        shared_memory.remove(self._started_ns)
        if self._ranks is not None:
            self._ranks.close()
        log_bound.join(self.folder.path)
        self._reaper.dismiss()
        self._release()
        self.over = True
        ended_ms = now_ms()
        self.folder.update_state(state="over", ended_ms=ended_ms)
        self._messages.over(ended_ms)

    # -- logs ----------------------------------------------------------------------------------------------

    def collect(self, order: Message) -> None:
        """Reply with a chunk of the packed logs, or of their summary; the first request packs it."""
        if self.running:
            raise OrderRefused("the logs cannot be collected before the round is over")
        folder, summary = self.folder.path, order.get("summary")
        limits = LogLimits(*(float(order.get(name) or math.inf) for name in ("max_bytes", "max_entries")))
        content = "logs" if summary is None else "summary"
        if content not in self._archives:
            self._archives[content] = Archive(
                folder,
                lambda handle: (
                    pack(folder, handle, limits) if summary is None else pack_summary(folder, handle, summary)
                ),
            )
        self._archives[content].request(int(order.get("offset", 0)))


class Agent:
    """Follow the controller's orders for one round on this host, from the first to the last."""

    def __init__(self, link: ControllerLink) -> None:
        self._link = link
        self._round: AgentRound | None = None
        self._lease_s = 0.0
        self._lost = False
        self._ending: str | None = None  # the reason to end as soon as the ranks have ended
        self._remove = False
        self._orders: dict[str, Callable[[Message], None]] = {
            "hello": self._hello,
            "ping": lambda order: link.reply({"type": "pong", "t": order.get("t"), "clock_ms": time.time() * 1000}),
            "lease": lambda order: link.reply(self._required_round.take_devices(order)),
            "release": lambda _: link.reply(self._required_round.release_devices()),
            "start": lambda order: self._required_round.start(order),
            "stop": lambda order: self._required_round.stop(str(order.get("reason", "no reason given"))),
            "strike": lambda order: self._required_round.strike(order["rank"]),
            "collect": lambda order: self._required_round.collect(order),
            "leave": self._leave,
        }

    @property
    def _required_round(self) -> AgentRound:
        """The round; raise OrderRefused before 'hello'."""
        if self._round is None:
            raise OrderRefused("the first order must be 'hello'")
        return self._round

    def serve(self) -> None:
        """Run until the controller sends 'leave', or is unreachable for longer than its lease."""
        while self._ending is None or (self._round is not None and self._round.running):
            self._link.wait(_TICK_S)
            for message in self._link.messages():
                self._obey(message)
            if self._round is not None:
                self._round.process()
            self._check_controller()
        self._finish()

    # -- orders --------------------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        try:
            order = self._orders.get(str(message.get("op")))
            if order is None:
                raise OrderRefused(f"unknown order; expected one of {', '.join(self._orders)}")
            order(message)
        except (OrderRefused, device_lease.LeaseError, FolderError) as error:
            self._refuse(message, str(error))
        except (OSError, LookupError, TypeError, ValueError) as error:
            self._refuse(message, f"{type(error).__name__}: {error}")

    def _refuse(self, message: Message, reason: str) -> None:
        sentence = f"{str(message)[:200]}: {reason}"
        self._note(sentence)
        self._link.reply(error_message(sentence))

    def _hello(self, order: Message) -> None:
        if self._round is not None:
            raise OrderRefused("this agent already has a round")
        lease_s = float(order.get("lease_s", 0))
        log_dir = order.get("log_dir")
        folder = LogFolder(Path(log_dir) if log_dir is not None else default_folder(str(order.get("name"))))
        lock = folder.take()
        self._link.listen(SOCKET, lambda: self._round is not None and self._round.started)
        own = AgentRound(folder, self._link, lock)
        if folder.write_error is not None:
            if folder.is_bare():
                folder.remove()
            raise FolderError(folder.write_error)
        self._round = own
        self._lease_s = lease_s
        self._link.reply(
            {
                "type": "hello",
                "pid": os.getpid(),
                "log_dir": str(folder.path),
                "code_root": str(CODE_ROOT),
                "cpus": topology.cpu_devices(os.sched_getaffinity(0)),
                "port": free_port(),
                "clock_ms": time.time() * 1000,
                "python": "{}.{}.{}".format(*sys.version_info),
                "host": os.uname().nodename,
            }
        )

    def _leave(self, order: Message) -> None:
        self._remove = self._remove or bool(order.get("remove"))
        self._end(_LEFT)

    # -- the end -------------------------------------------------------------------------------------------

    def _check_controller(self) -> None:
        if self._link.got_signal:
            self._end("the agent was ended by a signal")
        gone_s = self._link.gone_s()
        if (gone_s is not None) != self._lost:
            self._lost = gone_s is not None
            state = f"unreachable; its lease expires after {self._lease_s:g} s" if self._lost else "back"
            self._note(f"the controller is {state}")
        if gone_s is not None and gone_s >= self._patience_s:
            sentence = f"the controller was lost, and its lease of {self._lease_s:g} s has expired (lease_s)"
            if self._round is not None and self._ending is None:
                self._round.fail("lost_controller", sentence)
            self._end(sentence)

    @property
    def _patience_s(self) -> float:
        """The maximum wait for a lost controller: shorter before the ranks are started, to free the devices."""
        started = self._round is None or self._round.started
        return self._lease_s if started else min(self._lease_s, _NOT_STARTED_S)

    def _end(self, reason: str) -> None:
        if self._ending is None:
            self._ending = reason
            if self._round is not None:
                self._round.stop(reason)

    def _finish(self) -> None:
        if self._round is not None:
            folder = self._round.folder
            if self._round.waiting:
                from flagperf_driver.node import orphans  # only this case needs it

                orphans.remove_containers_of(folder.path)  # created for ranks that were never started
            if self._remove or folder.is_bare():
                folder.remove()
            elif self._ending == _LEFT:
                folder.remove_agent_files()
            else:  # the agent.json in the folder tells the next agent why this one ended
                folder.update_state(state="ended", reason=self._ending)
                with suppress(OSError):
                    (folder.path / SOCKET).unlink()
        self._link.reply({"type": "end"})
        self._link.close()

    def _note(self, text: str) -> None:
        if self._round is not None:
            self._round.folder.note(text)


def main() -> int:
    processes.adopt_orphans()
    processes.allow_descriptors()
    # The protocol uses its own descriptor, so that a stray print() cannot corrupt it.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    Agent(ControllerLink(MessageConnection(0, outgoing))).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
