"""The agent: supervise one round on one host for a controller.

Start it with ``python -m flagperf_driver.node.agent.main``. The controller sends orders as JSON lines on stdin; the
agent replies on stdout. If that connection breaks, the controller can attach again through a socket (connections.py).
The agent ends when the controller has collected everything, or has been unreachable for longer than the lease.
``--inner FOLDER`` starts the agent inside a container (container.py).
The agent does its work in one thread; another, which is confined, starts the ranks (confinement.py).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable

from flagperf_driver.node import processes
from flagperf_driver.node.agent.connections import Connection, ControllerLink, Message, connect, error_message
from flagperf_driver.node.agent.round import OrderRefused, Round
from flagperf_driver.node.deployed_code import CODE_ROOT
from flagperf_driver.node.device_lease import LeaseError
from flagperf_driver.node.folder import INNER_SOCKET, SOCKET, FolderError, LogFolder, default_folder
from flagperf_driver.node.sampling import topology
from flagperf_driver.ports import free_port

_TICK_S = 0.1
_GREETING_S = 60.0  # maximum wait for the controller's first order
_NOT_STARTED_S = 20.0  # maximum wait for a controller that was lost before the ranks were started
_LEFT = "its controller left"


class Agent:
    """Follow the controller's orders for one round on this host, from the first to the last."""

    def __init__(self, link: ControllerLink, inner: Path | None = None) -> None:
        self._link = link
        self._inner = inner
        self._round: Round | None = None
        self._lease_s = 0.0
        self._lost = False
        self._ending: str | None = None  # the reason to end as soon as the ranks have ended
        self._remove = False
        self._orders: dict[str, Callable[[Message], None]] = {
            "hello": self._hello,
            "ping": lambda order: link.reply({"type": "pong", "t": order.get("t"), "clock_ms": time.time() * 1000}),
            "ack": lambda order: link.forget(int(order["seq"])),
            "lease": lambda order: link.reply(self._required_round.take_devices(order)),
            "release": lambda _: link.reply(self._required_round.release_devices()),
            "start": lambda order: self._required_round.start(order),
            "stop": lambda order: self._required_round.stop(str(order.get("reason", "no reason given"))),
            "collect": lambda order: self._required_round.collect(order),
            "leave": self._leave,
        }

    @property
    def _required_round(self) -> Round:
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
        except (OrderRefused, LeaseError, FolderError) as error:
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
        silence_s = float(order["silence_s"]) if order.get("silence_s") is not None else None
        folder, lock = self._folder(order)
        self._round = Round(folder, self._link, lock)
        self._lease_s, self._link.silence_s = lease_s, silence_s
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

    def _folder(self, order: Message) -> tuple[LogFolder, int | None]:
        """Return the log folder and its lock. Of a round in a container, the agent on the host has the lock."""
        if self._inner is not None:
            return LogFolder(self._inner), None
        log_dir = order.get("log_dir")
        folder = LogFolder(Path(log_dir) if log_dir is not None else default_folder(str(order.get("name"))))
        lock = folder.take()
        self._link.listen(SOCKET)
        return folder, lock

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
        if self._round is not None and self._inner is None:
            folder = self._round.folder
            if self._round.waiting:
                self._remove_unstarted_containers(folder)
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

    def _remove_unstarted_containers(self, folder: LogFolder) -> None:
        """Remove the containers that were created for ranks that were never started."""
        from flagperf_driver.node import orphans  # only this case needs it

        orphans.remove_containers_of(folder.path)

    def _note(self, text: str) -> None:
        if self._round is not None:
            self._round.folder.note(text)


def main(arguments: list[str]) -> int:
    processes.adopt_orphans()
    if arguments[:1] == ["--inner"]:
        os.chdir(arguments[1])
        Agent(ControllerLink(connect(INNER_SOCKET)), Path(arguments[1])).serve()
        return 0
    # The protocol uses its own descriptor, so that a stray print() cannot corrupt it.
    outgoing = os.dup(1)
    os.dup2(2, 1)
    link = ControllerLink(Connection(0, outgoing))
    link.silence_s = _GREETING_S
    Agent(link).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
