"""One round on this host: the lease of its devices, its ranks or their container, and the sampler."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

from flagperf_driver.node import device_lease, processes, temporary
from flagperf_driver.node.agent.archive import Archive, LogLimits
from flagperf_driver.node.agent.connections import ControllerLink, Message
from flagperf_driver.node.agent.container import RoundContainer
from flagperf_driver.node.agent.messages import Messages, now_ms
from flagperf_driver.node.agent.ranks import Ranks, StartError, read_orders
from flagperf_driver.node.agent.sampler_process import SamplerProcess
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.confinement import shared_memory
from flagperf_driver.node.folder import STATE, FolderError, LogFolder
from flagperf_driver.node.sampling import series
from flagperf_driver.node.temporary import Temporary

_BEAT_S = 1.0


class OrderRefused(Exception):
    """The order cannot be followed; the text is the reason."""


class Supervisor(Protocol):
    """Supervise the ranks, on the host or in a container. It is over when the end of every rank has been reported."""

    @property
    def over(self) -> bool: ...

    def start(self) -> None: ...

    def process(self) -> None: ...

    def end(self, reason: str) -> None: ...

    def fail(self, kind: str, rank: int | None, sentence: str) -> None: ...

    def abandon(self) -> None: ...


class Round:
    """One round, from the lease of its devices to the last byte of its logs."""

    def __init__(self, folder: LogFolder, link: ControllerLink, lock: int | None) -> None:
        self.folder = folder
        self.over = False
        self._link = link
        self._messages = Messages(folder, link)
        self._lock = lock  # on the folder; None for the agent in a container
        self._lease: device_lease.Lease | None = None
        self._reaper: processes.Reaper | None = None
        self._temporary: Temporary | None = None
        self._caches: processes.BackgroundTask | None = None
        self._sampler: SamplerProcess | None = None
        self._supervisor: Supervisor | None = None
        self._archive: Archive | None = None
        self._started_ns = 0
        self._timer = Timer()
        self._timer.every(_BEAT_S, lambda _: self._messages.alive())
        self._samples = series.LatestSamples(folder.path)
        self._sample_timer = Timer()
        self._sample_timer.every(series.LATEST_EVERY_S, lambda _: self._messages.samples(self._samples.read()))
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
        locks = [*(self._lease.fds if self._lease is not None else ()), *([self._lock] if self._lock else [])]
        self._reaper = processes.Reaper(locks)
        self._reaper.watch_shared_memory(self._started_ns)
        try:
            self._supervisor = self._prepare(order, self._reaper)
        except FolderError as error:
            self._messages.fault("start", None, str(error))
            self._end()
            return
        except (StartError, OSError) as error:
            self._messages.fault("start", None, f"invalid start message: {error}")
            self._end()
            return
        if self._caches is None:
            self._supervisor.start()

    def _prepare(self, order: Message, reaper: processes.Reaper) -> Supervisor:
        """Prepare everything that the ranks need before they start."""
        for name, content in dict(order.get("files") or {}).items():
            (self.folder.path / name).write_text(content, "utf-8")
        orders = read_orders(order, self.folder.path)
        if order.get("clear_caches"):
            self._caches = processes.BackgroundTask(_clear_caches)
        if order.get("monitors"):
            self._sampler = SamplerProcess(order["monitors"], self._messages.warning)
        if order.get("container"):
            return RoundContainer(order, orders, self._messages, self._link, reaper)
        self._temporary = Temporary(bool(order.get("vendor_code")))
        reaper.watch_folder(self._temporary.path)
        return Ranks(orders, self._messages, reaper, self._temporary, own_limit=bool(order.get("limits_memory")))

    def stop(self, reason: str) -> None:
        """End the ranks, if they were started."""
        if self._caches is not None:
            self._end()
        elif self._supervisor is not None and not self._supervisor.over:
            self._supervisor.end(reason)

    def fail(self, kind: str, sentence: str) -> None:
        """Report a fault that does not belong to a rank."""
        if self._supervisor is not None and self.running:
            self._supervisor.fail(kind, None, sentence)

    def process(self) -> None:
        """Do everything that is due now; called often, and immediately after input or the end of a process."""
        try:
            if self.running:
                self._process_ranks()
            if self._archive is not None:
                for reply in self._archive.replies():
                    self._link.reply(reply)
        except Exception as error:  # the controller must receive the reason
            self._give_up(error)

    def _process_ranks(self) -> None:
        assert self._supervisor is not None
        if self._caches is not None:
            self._start_when_cleared(self._supervisor, self._caches)
        elif not self._supervisor.over:
            self._supervisor.process()
        over = self._caches is None and self._supervisor.over  # not while ranks wait for the caches to be cleared
        if self._sampler is not None:
            if over:
                self._sampler.end()
            self._sampler.process()
            self._sample_timer.run_due_calls()
        if over and (self._sampler is None or self._sampler.ended):
            self._end()

    def _start_when_cleared(self, supervisor: Supervisor, caches: processes.BackgroundTask) -> None:
        if not caches.ended():  # a terabyte of page cache takes minutes
            self._timer.run_due_calls()
            return
        self._caches = None
        try:
            caches.result()
        except RuntimeError as error:
            self._messages.warning(f"the host's caches could not be cleared: {error}")
        supervisor.start()

    def _give_up(self, error: Exception) -> None:
        import traceback  # slow to import, and needed only here

        self._messages.note(traceback.format_exc())
        self._messages.fault("agent", None, f"the agent failed: {type(error).__name__}: {error}")
        self._archive = None
        if self.running:
            self._end()

    def _end(self) -> None:
        """Kill all remaining processes, release all locks, and report that the round is over."""
        for part in (self._supervisor, self._sampler):
            if part is not None:
                part.abandon()
        assert self._reaper is not None
        processes.kill_children(except_pid=self._reaper.pid)
        shared_memory.remove(self._started_ns)
        if isinstance(self._supervisor, RoundContainer):
            # The agent of a killed container may have left its folder, where the container shares the host's /tmp.
            list(temporary.remove_leftovers(temporary.SHORT))
        if self._temporary is not None and not self._temporary.remove():
            self._messages.warning(f"the ranks' temporary folder {self._temporary.path} could not be removed")
        self._reaper.dismiss()
        self._release()
        self.over = True
        ended_ms = now_ms()
        self.folder.update_state(state="over", ended_ms=ended_ms)
        if self._lock is None:
            self.folder.give_to_owner()
        self._messages.send({"type": "over", "ended_ms": ended_ms})

    # -- logs ----------------------------------------------------------------------------------------------

    def collect(self, order: Message) -> None:
        """Reply with a chunk of the packed logs; the first request packs them."""
        if self.running:
            raise OrderRefused("the logs cannot be collected before the round is over")
        if self._archive is None:
            limits = [float(order.get(name) or math.inf) for name in ("max_bytes", "max_entries")]
            self._archive = Archive(self.folder.path, LogLimits(*limits))
        self._archive.request(int(order.get("offset", 0)))


def _clear_caches() -> None:
    from flagperf_driver.node.agent import caches

    caches.clear()
