"""The agent: holds a round's devices on this host, runs its ranks, and is there until its controller has it all.

``python -m flagperf_driver.node.agent`` talks JSON lines with its controller: orders on stdin, words on stdout, and
on any connection that takes their place (see wire.py). ``--inner FOLDER`` is the one in a container (see nest.py).
One thread does everything: ranks are tied to its life.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from flagperf_driver.node import lease, processes
from flagperf_driver.node.archive import Archive
from flagperf_driver.node.companion import CODE_ROOT, Companion
from flagperf_driver.node.folder import INNER_SOCKET, SOCKET, FolderError, LogFolder, default_folder
from flagperf_driver.node.nest import Nest
from flagperf_driver.node.supervise import Ranks, StartError, read_orders
from flagperf_driver.node.wire import Connection, Message, Wire, dial, error

# Below the range from which Linux serves outgoing connections: none of those takes the port meanwhile.
PORTS = range(20000, 32000)

_TICK_S = 0.1
_GREETING_S = 60.0  # a controller has so long for its first order


class Refused(Exception):
    """An order that cannot be followed; the text says why."""


class Agent:
    """One round on this host, from the controller's first order to the last."""

    def __init__(self, wire: Wire, inner: Path | None = None) -> None:
        self._wire = wire
        self._inner = inner
        self._folder: LogFolder | None = None
        self._lock: int | None = None
        self._lease: lease.Lease | None = None
        self._lease_s = 0.0
        self._janitor: processes.Janitor | None = None
        self._companion: Companion | None = None
        self._caches: processes.Errand | None = None
        self._work: Ranks | Nest | None = None
        self._over = False
        self._lost = False
        self._leaving: str | None = None  # why this ends as soon as the ranks have ended
        self._archive: Archive | None = None
        self._remove = False
        self._orders = {
            "hello": self._hello,
            "ping": self._pong,
            "lease": self._take_devices,
            "release": self._release_devices,
            "start": self._start,
            "stop": self._stop,
            "ack": self._confirmed,
            "collect": self._collect,
            "leave": self._leave,
        }

    def serve(self) -> None:
        """Until the controller says that it has everything, or is gone for longer than its lease."""
        while self._leaving is None or self._running:
            self._wire.wait(_TICK_S)
            for message in self._wire.messages():
                self._obey(message)
            self._go_on()
            self._watch_the_controller()
        self._part()

    @property
    def _running(self) -> bool:
        return self._janitor is not None and not self._over

    # -- orders --------------------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        order = self._orders.get(str(message.get("op")))
        try:
            if order is None:
                raise Refused(f"an order that is not known; there are {', '.join(self._orders)}")
            if self._folder is None and order not in (self._hello, self._pong, self._leave):
                raise Refused("the first order must be 'hello'")
            order(message)
        except (Refused, lease.LeaseError, FolderError, OSError, LookupError, TypeError, ValueError) as refused:
            self._refuse(message, refused)

    def _refuse(self, message: Message, refused: Exception) -> None:
        why = str(refused) if isinstance(refused, (Refused, RuntimeError)) else f"{type(refused).__name__}: {refused}"
        sentence = f"{str(message)[:200]}: {why}"
        if self._folder is not None:
            self._folder.note(sentence)
        self._wire.answer(error(sentence))

    def _hello(self, order: Message) -> None:
        if self._folder is not None:
            raise Refused("this agent has a round already")
        lease_s = float(order.get("lease_s", 0))
        silence_s = order.get("silence_s")
        if self._inner is not None:
            folder = LogFolder(self._inner)
        else:
            wanted = order.get("log_dir")
            folder = LogFolder(Path(wanted) if wanted is not None else default_folder(str(order.get("name"))))
            self._lock = folder.take()
            self._wire.listen(SOCKET)
        self._folder, self._lease_s = folder, lease_s
        self._wire.silence_s = None if silence_s is None else float(silence_s)
        folder.state()
        self._wire.answer(
            {
                "type": "hello",
                "pid": os.getpid(),
                "log_dir": str(folder.path),
                "code_root": str(CODE_ROOT),
                "cpus": sorted(os.sched_getaffinity(0)),
                "port": free_port(),
                "clock_ms": time.time() * 1000,
                "python": "{}.{}.{}".format(*sys.version_info),
                "host": os.uname().nodename,
            }
        )

    def _pong(self, order: Message) -> None:
        self._wire.answer({"type": "pong", "t": order.get("t"), "clock_ms": time.time() * 1000})

    def _take_devices(self, order: Message) -> None:
        if self._lease is not None or self._janitor is not None:
            raise Refused("this agent has its devices already")
        directory = Path(order["directory"]) if order.get("directory") else lease.default_directory()
        self._lease = lease.take(
            int(order["wanted"]),
            candidates=[int(device) for device in order["candidates"]],
            whole_host=bool(order.get("whole_host")),
            owner=dict(order.get("owner") or {}),
            directory=directory,
        )
        if self._lease is not None:
            self._wire.answer({"type": "leased", "devices": list(self._lease.devices)})
        else:
            who = lease.holders(directory) or ["somebody took devices at the same moment"]
            self._wire.answer({"type": "busy", "holders": who})

    def _release_devices(self, _: Message) -> None:
        if self._running:
            raise Refused("its ranks still have the devices")
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._wire.answer({"type": "released"})

    def _start(self, order: Message) -> None:
        assert self._folder is not None
        if self._janitor is not None or self._leaving is not None:
            raise Refused("this agent has started its round already")
        self._folder.log = str(order.get("log", "start_task.log"))
        self._folder.state(state="running", started_ms=_now_ms())
        # It has the locks until it is done: devices are not free while it still kills what was left of the ranks.
        locks = self._lease.fds if self._lease is not None else ()
        self._janitor = processes.Janitor([*locks, *([self._lock] if self._lock is not None else [])])
        try:
            self._work = self._prepare(order, self._folder, self._janitor)
            if self._caches is None:
                self._work.start()
        except StartError as wrong:
            self._tell_fault("start", f"a start message that cannot be followed: {wrong}")
            self._end_round()

    def _prepare(self, order: Message, folder: LogFolder, janitor: processes.Janitor) -> Ranks | Nest:
        for name, content in dict(order.get("files") or {}).items():
            (folder.path / name).write_text(content, "utf-8")
        orders = read_orders(order, folder.path)
        container = order.get("container")
        if order.get("clear_caches"):
            self._caches = processes.Errand(_clear_caches)
        if order.get("monitors"):
            self._companion = Companion(order["monitors"], self._warn)
        if container is None:
            return Ranks(orders, folder, self._wire, janitor, inner=self._inner is not None)
        return Nest(order, container, orders, folder, self._wire, janitor)

    def _stop(self, order: Message) -> None:
        if self._work is not None:
            self._work.end(str(order.get("reason", "no reason given")))

    def _confirmed(self, order: Message) -> None:
        self._wire.forget(int(order["seq"]))

    def _collect(self, order: Message) -> None:
        assert self._folder is not None
        if self._running:
            raise Refused("the logs can be had when the round is over")
        if self._archive is None:
            self._archive = Archive(self._folder.path)
        self._archive.ask(int(order.get("offset", 0)))

    def _leave(self, order: Message) -> None:
        self._remove = self._remove or bool(order.get("remove"))
        self._close("the controller leaves")

    # -- the round -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """One turn of everything that is under way."""
        try:
            if self._running:
                self._take_a_turn()
            if self._archive is not None:
                for answer in self._archive.answers():
                    self._wire.answer(answer)
        except Exception as failed:  # a host's work ends here; the controller must hear why
            self._give_up(failed)

    def _take_a_turn(self) -> None:
        assert self._work is not None
        if self._caches is not None:
            self._start_when_cleared(self._work, self._caches)
        elif not self._work.over:
            self._work.turn()
        if self._companion is not None:
            if self._work.over:
                self._companion.end()
            self._companion.turn()
        if self._work.over and (self._companion is None or self._companion.ended):
            self._end_round()

    def _start_when_cleared(self, work: Ranks | Nest, caches: processes.Errand) -> None:
        if caches.ended():
            self._caches = None
            try:
                caches.answer()
            except RuntimeError as refused:
                self._warn(f"the host's caches could not be cleared: {refused}")
            work.start()

    def _give_up(self, failed: Exception) -> None:
        import traceback  # costs every agent's start more than all else that only a failure needs

        if self._folder is not None:
            self._folder.note(traceback.format_exc())
        with suppress(OSError):
            traceback.print_exc()
        self._tell_fault("agent", f"the agent failed: {type(failed).__name__}: {failed}")
        self._archive = None
        if self._running:
            self._end_round()

    def _end_round(self) -> None:
        """No process and no lock is left, and the controller hears so."""
        if self._work is not None:
            self._work.abandon()
        if self._companion is not None:
            self._companion.abandon()
        assert self._janitor is not None
        processes.kill_children(besides=self._janitor.pid)
        self._janitor.dismiss()
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._over = True
        ended_ms = _now_ms()
        assert self._folder is not None
        self._folder.state(state="over", ended_ms=ended_ms)
        if self._inner is not None:
            self._folder.give_to_its_owner()
        self._wire.tell({"type": "over", "ended_ms": ended_ms})

    def _warn(self, sentence: str) -> None:
        if self._folder is not None:
            self._folder.note(f"warning: {sentence}")
        self._wire.tell({"type": "warning", "sentence": sentence})

    def _tell_fault(self, kind: str, sentence: str) -> None:
        if self._folder is not None:
            self._folder.note(f"{kind}: {sentence}")
            self._folder.state(fault={"kind": kind, "sentence": sentence})
        self._wire.tell({"type": "fault", "kind": kind, "rank": None, "sentence": sentence})

    # -- the end -------------------------------------------------------------------------------------------

    def _watch_the_controller(self) -> None:
        if self._wire.told_to_end:
            self._close("this agent was told to end by a signal")
        gone_s = self._wire.gone_s()
        if (gone_s is not None) != self._lost:
            self._lost = gone_s is not None
            if self._folder is not None:
                how = f"gone; its lease runs for {self._lease_s:g} s" if self._lost else "back"
                self._folder.note(f"the controller is {how}")
        if gone_s is not None and gone_s >= self._lease_s:
            sentence = f"the controller was lost, and its lease of {self._lease_s:g} s is over (lease_s)"
            if self._work is not None and self._running and self._leaving is None:
                self._work.fail("lost_controller", None, sentence)
            self._close(sentence)

    def _close(self, reason: str) -> None:
        if self._leaving is None:
            self._leaving = reason
            if self._running and self._work is not None:
                if self._caches is not None:
                    self._end_round()
                else:
                    self._work.end(reason)

    def _part(self) -> None:
        if self._folder is not None and self._inner is None:
            if self._remove:
                self._folder.remove()
            elif self._leaving == "the controller leaves":
                self._folder.tidy()
            else:
                self._folder.state(state="ended", why=self._leaving)
                with suppress(OSError):
                    (self._folder.path / SOCKET).unlink()
        self._wire.answer({"type": "end"})
        self._wire.close()


def free_port(tries: int = 100) -> int:
    """A port that nobody listens on now; who comes first to it later is told so by its own framework."""
    for _ in range(tries):
        port = PORTS[int.from_bytes(os.urandom(4), "big") % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port among {tries} tried in {PORTS[0]}-{PORTS[-1]}")


def _clear_caches() -> None:
    from flagperf_driver.node import caches

    caches.clear()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(words: list[str]) -> int:
    processes.adopt_orphans()
    if words[:1] == ["--inner"]:
        os.chdir(words[1])
        Agent(Wire(dial(INNER_SOCKET)), Path(words[1])).serve()
        return 0
    # The protocol gets a descriptor of its own: a stray print must not fall into it.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    wire = Wire(Connection(0, outgoing))
    wire.silence_s = _GREETING_S
    Agent(wire).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
