"""One round on this host: its devices, its ranks or the container that they are in, and the sampler beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from flagperf_driver.node import lease, processes
from flagperf_driver.node.agent.archive import Archive, LogLimits
from flagperf_driver.node.agent.connections import ControllerLink, Message
from flagperf_driver.node.agent.container import RoundContainer
from flagperf_driver.node.agent.messages import Messages, now_ms
from flagperf_driver.node.agent.rank_orders import StartError, read_orders
from flagperf_driver.node.agent.ranks import Ranks
from flagperf_driver.node.agent.sampler_process import SamplerProcess
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.folder import FolderError, LogFolder
from flagperf_driver.node.temporary import Temporary

_BEAT_S = 1.0


class OrderRefused(Exception):
    """An order that cannot be followed; the text says why."""


class Supervisor(Protocol):
    """Ranks, wherever they run. It is over when the last one's end has been told."""

    @property
    def over(self) -> bool: ...

    def start(self) -> None: ...

    def turn(self) -> None: ...

    def end(self, reason: str) -> None: ...

    def fail(self, kind: str, rank: int | None, sentence: str) -> None: ...

    def abandon(self) -> None: ...


class Round:
    """From the lease of its devices to the last byte of its logs."""

    def __init__(self, folder: LogFolder, wire: ControllerLink, lock: int | None) -> None:
        self.folder = folder
        self.over = False
        self._wire = wire
        self._messages = Messages(folder, wire)
        self._lock = lock  # on the folder; an agent in a container has none
        self._lease: lease.Lease | None = None
        self._reaper: processes.Reaper | None = None
        self._temporary: Temporary | None = None
        self._caches: processes.BackgroundTask | None = None
        self._sampler: SamplerProcess | None = None
        self._supervisor: Supervisor | None = None
        self._archive: Archive | None = None
        self._timer = Timer()
        self._timer.every(_BEAT_S, lambda _: self._messages.alive())
        folder.state()

    @property
    def begun(self) -> bool:
        """Whether it was told to start its ranks."""
        return self._reaper is not None

    @property
    def waiting(self) -> bool:
        """Whether it holds devices for ranks that are still to be started."""
        return self._lease is not None and not self.begun

    @property
    def running(self) -> bool:
        return self._reaper is not None and not self.over

    # -- devices -------------------------------------------------------------------------------------------

    def take_devices(self, order: Message) -> Message:
        """One attempt; the answer says which it got, or who has them."""
        if self._lease is not None or self._reaper is not None:
            raise OrderRefused("this agent has its devices already")
        directory = Path(order["directory"]) if order.get("directory") else lease.default_directory()
        self._lease = lease.take(
            int(order["count"]),
            candidates=[int(device) for device in order["candidates"]],
            whole_host=bool(order.get("whole_host")),
            owner=dict(order.get("owner") or {}),
            directory=directory,
        )
        if self._lease is not None:
            return {"type": "leased", "devices": list(self._lease.devices)}
        return {"type": "busy", "holders": lease.holders(directory) or ["somebody took devices at the same moment"]}

    def release_devices(self) -> Message:
        if self.running:
            raise OrderRefused("its ranks still have the devices")
        self._release()
        return {"type": "released"}

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    # -- ranks ---------------------------------------------------------------------------------------------

    def start(self, order: Message) -> None:
        if self._reaper is not None:
            raise OrderRefused("this agent has started its round already")
        self.folder.log = str(order.get("log", "start_task.log"))
        self.folder.state(state="running", started_ms=now_ms())
        # It has the locks until it is done: devices are not free while it still kills what was left of the ranks.
        locks = [*(self._lease.fds if self._lease is not None else ()), *([self._lock] if self._lock else [])]
        self._reaper = processes.Reaper(locks)
        try:
            self._supervisor = self._prepare(order, self._reaper)
        except FolderError as wrong:
            self._messages.fault("start", None, str(wrong))
            self._end()
            return
        except (StartError, OSError) as wrong:
            self._messages.fault("start", None, f"a start message that cannot be followed: {wrong}")
            self._end()
            return
        if self._caches is None:
            self._supervisor.start()

    def _prepare(self, order: Message, reaper: processes.Reaper) -> Supervisor:
        """Everything that ranks find when they start."""
        for name, content in dict(order.get("files") or {}).items():
            (self.folder.path / name).write_text(content, "utf-8")
        orders = read_orders(order, self.folder.path)
        if order.get("clear_caches"):
            self._caches = processes.BackgroundTask(_clear_caches)
        if order.get("monitors"):
            self._sampler = SamplerProcess(order["monitors"], self._messages.warning)
        if order.get("container"):
            return RoundContainer(order, orders, self._messages, self._wire, reaper)
        self._temporary = Temporary()
        reaper.watch_folder(self._temporary.path)
        return Ranks(orders, self._messages, reaper, self._temporary.env, inner=self._lock is None)

    def stop(self, reason: str) -> None:
        """Have the ranks end, if there are any."""
        if self._caches is not None:
            self._end()
        elif self._supervisor is not None and not self._supervisor.over:
            self._supervisor.end(reason)

    def fail(self, kind: str, sentence: str) -> None:
        """A fault that is no rank's."""
        if self._supervisor is not None and self.running:
            self._supervisor.fail(kind, None, sentence)

    def turn(self) -> None:
        """Do what is to be done now; called often, and at once when something has come or ended."""
        try:
            if self.running:
                self._take_a_turn()
            if self._archive is not None:
                for answer in self._archive.answers():
                    self._wire.answer(answer)
        except Exception as failed:  # a host's supervisor ends here; the controller must hear why
            self._give_up(failed)

    def _take_a_turn(self) -> None:
        assert self._supervisor is not None
        if self._caches is not None:
            self._start_when_cleared(self._supervisor, self._caches)
        elif not self._supervisor.over:
            self._supervisor.turn()
        over = self._caches is None and self._supervisor.over  # ranks that wait for their start have not ended
        if self._sampler is not None:
            if over:
                self._sampler.end()
            self._sampler.turn()
        if over and (self._sampler is None or self._sampler.ended):
            self._end()

    def _start_when_cleared(self, supervisor: Supervisor, caches: processes.BackgroundTask) -> None:
        if not caches.ended():  # a terabyte of them takes minutes
            self._timer.do_what_is_due()
            return
        self._caches = None
        try:
            caches.answer()
        except RuntimeError as refused:
            self._messages.warning(f"the host's caches could not be cleared: {refused}")
        supervisor.start()

    def _give_up(self, failed: Exception) -> None:
        import traceback  # costs every agent's start more than all else that only a failure needs

        self._messages.note(traceback.format_exc())
        self._messages.fault("agent", None, f"the agent failed: {type(failed).__name__}: {failed}")
        self._archive = None
        if self.running:
            self._end()

    def _end(self) -> None:
        """No process and no lock is left, and the controller hears so."""
        for each in (self._supervisor, self._sampler):
            if each is not None:
                each.abandon()
        assert self._reaper is not None
        processes.kill_children(besides=self._reaper.pid)
        if self._temporary is not None and not self._temporary.remove():
            self._messages.warning(f"the ranks' temporary folder {self._temporary.path} could not be removed")
        self._reaper.dismiss()
        self._release()
        self.over = True
        ended_ms = now_ms()
        self.folder.state(state="over", ended_ms=ended_ms)
        if self._lock is None:
            self.folder.give_to_its_owner()
        self._messages.tell({"type": "over", "ended_ms": ended_ms})

    # -- logs ----------------------------------------------------------------------------------------------

    def collect(self, order: Message) -> None:
        """Have a piece of the packed logs answered; they are packed at the first request."""
        if self.running:
            raise OrderRefused("the logs can be had when the round is over")
        if self._archive is None:
            limits = [float(order.get(name) or math.inf) for name in ("max_bytes", "max_entries")]
            self._archive = Archive(self.folder.path, LogLimits(*limits))
        self._archive.ask(int(order.get("offset", 0)))


def _clear_caches() -> None:
    from flagperf_driver.node.agent import caches

    caches.clear()
