"""The agent: supervises one round on one host for a controller.

Start it with ``python -m flagperf_driver.node.agent.main``. The controller sends orders as JSON lines on stdin; the
agent replies on stdout. If that connection breaks, the controller can attach again through a socket (connections.py).
The agent ends when the controller has collected everything, or has been unreachable for longer than the lease.
``--inner FOLDER`` starts the agent inside a container (container.py).
The agent has a single thread because the kernel ends the ranks together with the thread that started them.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable

from flagperf_driver.node import processes
from flagperf_driver.node.agent.connections import Connection, ControllerLink, Message, dial, error
from flagperf_driver.node.agent.round import OrderRefused, Round
from flagperf_driver.node.deployed_code import CODE_ROOT
from flagperf_driver.node.folder import INNER_SOCKET, SOCKET, FolderError, LogFolder, default_folder
from flagperf_driver.node.lease import LeaseError
from flagperf_driver.node.ports import free_port
from flagperf_driver.node.sampling import topology

_TICK_S = 0.1
_GREETING_S = 60.0  # a controller has so long for its first order
_UNBEGUN_S = 20.0  # and is waited for so long, at most, if it goes before there is anything to lose
_LEFT = "its controller left"


class Agent:
    """One round on this host, from the controller's first order to the last."""

    def __init__(self, wire: ControllerLink, inner: Path | None = None) -> None:
        self._wire = wire
        self._inner = inner
        self._round: Round | None = None
        self._lease_s = 0.0
        self._lost = False
        self._ending: str | None = None  # why this ends as soon as the ranks have ended
        self._remove = False
        self._orders: dict[str, Callable[[Message], None]] = {
            "hello": self._hello,
            "ping": lambda order: wire.answer({"type": "pong", "t": order.get("t"), "clock_ms": time.time() * 1000}),
            "ack": lambda order: wire.forget(int(order["seq"])),
            "lease": lambda order: wire.answer(self._known.take_devices(order)),
            "release": lambda _: wire.answer(self._known.release_devices()),
            "start": lambda order: self._known.start(order),
            "stop": lambda order: self._known.stop(str(order.get("reason", "no reason given"))),
            "collect": lambda order: self._known.collect(order),
            "leave": self._leave,
        }

    @property
    def _known(self) -> Round:
        if self._round is None:
            raise OrderRefused("the first order must be 'hello'")
        return self._round

    def serve(self) -> None:
        """Until the controller says that it has everything, or is gone for longer than its lease."""
        while self._ending is None or (self._round is not None and self._round.running):
            self._wire.wait(_TICK_S)
            for message in self._wire.messages():
                self._obey(message)
            if self._round is not None:
                self._round.turn()
            self._watch_the_controller()
        self._part()

    # -- orders --------------------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        try:
            order = self._orders.get(str(message.get("op")))
            if order is None:
                raise OrderRefused(f"an order that is not known; there are {', '.join(self._orders)}")
            order(message)
        except (OrderRefused, LeaseError, FolderError) as refused:
            self._refuse(message, str(refused))
        except (OSError, LookupError, TypeError, ValueError) as wrong:
            self._refuse(message, f"{type(wrong).__name__}: {wrong}")

    def _refuse(self, message: Message, why: str) -> None:
        sentence = f"{str(message)[:200]}: {why}"
        self._note(sentence)
        self._wire.answer(error(sentence))

    def _hello(self, order: Message) -> None:
        if self._round is not None:
            raise OrderRefused("this agent has a round already")
        lease_s = float(order.get("lease_s", 0))
        silence_s = float(order["silence_s"]) if order.get("silence_s") is not None else None
        folder, lock = self._folder(order)
        self._round = Round(folder, self._wire, lock)
        self._lease_s, self._wire.silence_s = lease_s, silence_s
        self._wire.answer(
            {
                "type": "hello",
                "pid": os.getpid(),
                "log_dir": str(folder.path),
                "code_root": str(CODE_ROOT),
                "cpus": topology.cards(os.sched_getaffinity(0)),
                "port": free_port(),
                "clock_ms": time.time() * 1000,
                "python": "{}.{}.{}".format(*sys.version_info),
                "host": os.uname().nodename,
            }
        )

    def _folder(self, order: Message) -> tuple[LogFolder, int | None]:
        """The log folder and the lock on it; in a container the agent outside has that."""
        if self._inner is not None:
            return LogFolder(self._inner), None
        wanted = order.get("log_dir")
        folder = LogFolder(Path(wanted) if wanted is not None else default_folder(str(order.get("name"))))
        lock = folder.take()
        self._wire.listen(SOCKET)
        return folder, lock

    def _leave(self, order: Message) -> None:
        self._remove = self._remove or bool(order.get("remove"))
        self._end(_LEFT)

    # -- the end -------------------------------------------------------------------------------------------

    def _watch_the_controller(self) -> None:
        if self._wire.told_to_end:
            self._end("it was told to end by a signal")
        gone_s = self._wire.gone_s()
        if (gone_s is not None) != self._lost:
            self._lost = gone_s is not None
            how = f"gone; its lease runs for {self._lease_s:g} s" if self._lost else "back"
            self._note(f"the controller is {how}")
        if gone_s is not None and gone_s >= self._patience_s:
            sentence = f"the controller was lost, and its lease of {self._lease_s:g} s is over (lease_s)"
            if self._round is not None and self._ending is None:
                self._round.fail("lost_controller", sentence)
            self._end(sentence)

    @property
    def _patience_s(self) -> float:
        """Devices are not held for a controller that had not come to start its ranks: another one may want them."""
        begun = self._round is None or self._round.begun
        return self._lease_s if begun else min(self._lease_s, _UNBEGUN_S)

    def _end(self, reason: str) -> None:
        if self._ending is None:
            self._ending = reason
            if self._round is not None:
                self._round.stop(reason)

    def _part(self) -> None:
        if self._round is not None and self._inner is None:
            folder = self._round.folder
            if self._round.waiting:
                self._remove_what_was_prepared(folder)
            if self._remove or folder.is_bare():
                folder.remove()
            elif self._ending == _LEFT:
                folder.tidy()
            else:  # the next one finds out here
                folder.state(state="ended", why=self._ending)
                with suppress(OSError):
                    (folder.path / SOCKET).unlink()
        self._wire.answer({"type": "end"})
        self._wire.close()

    def _remove_what_was_prepared(self, folder: LogFolder) -> None:
        """A container that was made for ranks which then were not started."""
        from flagperf_driver.node import orphans  # needs http, which no other round does

        orphans.remove_containers_of(folder.path)

    def _note(self, text: str) -> None:
        if self._round is not None:
            self._round.folder.note(text)


def main(words: list[str]) -> int:
    processes.adopt_orphans()
    if words[:1] == ["--inner"]:
        os.chdir(words[1])
        Agent(ControllerLink(dial(INNER_SOCKET)), Path(words[1])).serve()
        return 0
    # The protocol gets a descriptor of its own: a stray print must not fall into it.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    wire = ControllerLink(Connection(0, outgoing))
    wire.silence_s = _GREETING_S
    Agent(wire).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
