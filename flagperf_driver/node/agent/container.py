"""Run a round in a container: a second agent supervises the ranks there, and this agent forwards its messages.

The controller has created the container. This module starts it, waits until its agent connects to ``inner.sock`` in
the log folder, and removes it in the end in any case. A child process calls Docker, so that the agent never waits.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Callable

from flagperf_driver import events
from flagperf_driver.node import processes
from flagperf_driver.node.agent.connections import Connection, ControllerLink, Message, SocketListener
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.rank_orders import RankOrders
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.folder import INNER_SOCKET

_BEAT_S = 1.0
_CONNECT_S = 60.0  # maximum time from the container's start to the connection of its agent
_POLL_S = 0.5  # between two checks of a container whose agent has not connected
_END_S = 3.0  # maximum time for Docker to notice that a container has ended
_SILENT_S = 30.0  # an agent sends a message every second, unless it is paused or stuck with its container
_LONGEST_TICK_S = 2.0  # a longer pause of this agent, for example of a frozen host, is not the container's silence
_AFTER_GRACE_S = 20.0  # time for the inner agent to end its ranks, in addition to their grace
_REMOVE_FOR_S = 20.0  # Docker may be restarting


class RoundContainer:
    """One round's container on this host, from its start to its removal."""

    def __init__(
        self,
        order: Message,
        orders: RankOrders,
        messages: Messages,
        link: ControllerLink,
        reaper: processes.Reaper,
    ) -> None:
        from flagperf_driver.node.docker_engine import DockerEngine  # only a round in a container needs it

        self._order = order
        self._orders = orders
        self._messages = messages
        self._link = link
        self._reaper = reaper
        self._id = str(order["container"]["id"])
        self._socket = str(order["container"]["socket"])
        self._engine = DockerEngine(self._socket)
        self._not_ended = {order.rank for order in orders.ranks}
        self._task: tuple[processes.BackgroundTask, Callable[[processes.BackgroundTask], None]] | None = None
        self._timer = Timer()
        self._timer.every(_BEAT_S, self._check_silence)
        self._listener: SocketListener | None = None
        self._peer: Connection | None = None
        self._connect_by = 0.0
        self._last_seq = 0  # of the messages from the inner agent
        self._previous_seq = 0
        self._silent_s = 0.0
        self._ending = False
        self._removing = False
        self._give_up_at = 0.0
        self._warned = False
        self.over = False

    def start(self) -> None:
        self._reaper.watch_container(self._socket, self._id)
        self._listener = SocketListener(INNER_SOCKET)
        self._link.others.append(self._listener)
        self._call(self._on_started, lambda: self._engine.start(self._id))
        self._beat()

    def process(self) -> None:
        """Do everything that is due now; called often, and immediately after input."""
        if self._task is not None and self._task[0].ended():
            (task, then), self._task = self._task, None
            then(task)
        self._accept()
        if self._peer is not None:
            self._relay(self._peer)
        self._timer.run_due_calls()

    def end(self, reason: str) -> None:
        """End all ranks: through the inner agent if it is connected, else by removing the container."""
        if self._ending:
            return
        self._messages.note(f"stopping the ranks: {reason}")
        self._ending = True
        if self._peer is not None and not self._peer.ended:
            self._send({"op": "stop", "reason": reason})
            self._timer.after(self._orders.grace_s + _AFTER_GRACE_S, self._remove)
        elif self._task is None:
            self._remove()

    def fail(self, kind: str, rank: int | None, sentence: str) -> None:
        """Report a fault, which does not end the ranks. While they are being ended, nothing counts as a fault."""
        if not self._ending:
            self._messages.fault(kind, rank, sentence)

    def abandon(self) -> None:
        """Remove the container, whatever happened to this process."""
        if not self.over:
            with suppress(RuntimeError):
                self._engine.remove(self._id, force=True)

    # -- start ---------------------------------------------------------------------------------------------

    def _on_started(self, task: processes.BackgroundTask) -> None:
        try:
            task.result()
        except RuntimeError as error:
            self._container_failed(f"could not be started: {error}")
            return
        self._messages.note(f"container {self._id[:12]} started")
        self._connect_by = time.monotonic() + _CONNECT_S
        if self._ending:
            self._remove()
        else:
            self._timer.after(_POLL_S, self._check_connected)

    def _check_connected(self) -> None:
        if self._peer is None and not self._removing:
            self._call(self._on_state, self._get_state)

    def _on_state(self, task: processes.BackgroundTask) -> None:
        """Wait for the agent of a container that is running, up to the deadline."""
        state = self._state_of(task)
        if self._peer is not None or self._removing:
            return
        if self._ending:
            self._remove()
        elif state["running"] is False:
            self._container_failed(state["sentence"])
        elif time.monotonic() > self._connect_by:
            problem = f"is running, but its agent did not connect within {_CONNECT_S:g} s"
            self._container_failed(problem + state["last_line"])
        else:
            self._timer.after(_POLL_S, self._check_connected)

    def _accept(self) -> None:
        if self._listener is None or self._peer is not None or not self._listener.accepted:
            return
        self._peer = self._listener.accepted.pop(0)
        self._link.others.append(self._peer)
        self._close_listener()
        self._send({"op": "hello", "lease_s": 0})
        # The agent on the host has already done the rest of the order.
        self._send({**self._order, "container": None, "monitors": None, "clear_caches": False, "files": None})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._link.others.remove(self._listener)
            self._listener.close()
            self._listener = None

    # -- while it runs -------------------------------------------------------------------------------------

    def _relay(self, peer: Connection) -> None:
        """Forward the messages of the inner agent; the link to the controller numbers them again."""
        previous_seq = self._last_seq
        for message in peer.messages():
            self._forward(message)
        if self._last_seq > previous_seq:
            self._send({"op": "ack", "seq": self._last_seq})
        if peer.ended and not self._removing and self._task is None:
            self._disconnect()
            self._call(self._on_end, self._wait_for_end)

    def _check_silence(self, passed_s: float) -> None:
        """Remove the container if its agent no longer sends messages."""
        if self._peer is None or self._removing or self._last_seq != self._previous_seq:
            self._silent_s, self._previous_seq = 0.0, self._last_seq
            return
        self._silent_s += min(passed_s, _LONGEST_TICK_S)
        if self._silent_s >= _SILENT_S:
            self._container_failed(f"has sent nothing for {_SILENT_S:g} s: it is paused, or stuck in the kernel")

    def _forward(self, message: Message) -> None:
        body = dict(message)
        kind = body.get("type")
        if kind == "error":
            self.fail("container", None, f"the agent in the container refused an order: {body.get('sentence')}")
            self.end("the agent in the container refused an order")
        if "seq" not in body:
            return
        self._last_seq = int(body.pop("seq"))
        if kind == "over":
            self._remove()
        elif kind == "fault":
            self.fail(str(body["kind"]), body.get("rank"), str(body["sentence"]))
        else:
            if kind == "exit":
                self._not_ended.discard(int(body["rank"]))
            expendable = kind in ("beat", "lines") or body.get("event") not in (None, events.FAILED, events.FINISHED)
            if kind != "beat" or self._messages.connected:
                self._messages.send(body, expendable)

    def _beat(self) -> None:
        """Send beats to the controller until the inner agent does."""
        if self._peer is None and not self.over:
            self._messages.alive()
            self._timer.after(_BEAT_S, self._beat)

    def _on_end(self, task: processes.BackgroundTask) -> None:
        self._container_failed(self._state_of(task)["sentence"])

    def _container_failed(self, problem: str) -> None:
        ranks = sorted(self._not_ended)
        names = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}" if ranks else "all ranks"
        self.fail("container", ranks[0] if ranks else None, f"the container of {names} {problem}")
        self._remove()

    # -- end -----------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        if self._removing:
            return
        self._removing = True
        self._send({"op": "leave"})
        self._give_up_at = time.monotonic() + _REMOVE_FOR_S
        self._try_to_remove()

    def _try_to_remove(self) -> None:
        if self._task is not None:  # the previous call to Docker has not returned yet
            self._timer.after(0.05, self._try_to_remove)
            return
        self._call(self._on_removed, lambda: self._engine.remove(self._id, force=True))

    def _on_removed(self, task: processes.BackgroundTask) -> None:
        try:
            task.result()
        except RuntimeError as error:
            self._retry_removal(str(error))
            return
        self._messages.note(f"container {self._id[:12]} removed")
        self._finish()

    def _retry_removal(self, reason: str) -> None:
        late = time.monotonic() > self._give_up_at
        if late or not self._warned:
            self._warned = True
            problem = "remains until the next run on this host removes it" if late else "cannot be removed yet"
            self._messages.warning(f"container {self._id[:12]} {problem}: {reason}")
        if late:
            self._finish()
        else:
            self._timer.after(1.0, self._try_to_remove)

    def _finish(self) -> None:
        self._disconnect()
        self._close_listener()
        for rank in sorted(self._not_ended):
            self._messages.exit(rank, cause="stopped" if self._ending else "crash")
        self.over = True

    # -- helpers -------------------------------------------------------------------------------------------

    def _call(self, then: Callable[[processes.BackgroundTask], None], call: Callable[[], Any]) -> None:
        """Make a call to Docker in a child process, and run ``then`` when it has returned."""
        self._task = (processes.BackgroundTask(call), then)

    def _get_state(self) -> dict[str, Any]:
        state = self._engine.state(self._id)
        lines = [line.strip() for line in self._engine.logs(self._id).splitlines() if line.strip()]
        last_line = f"; its last line: {lines[-1][:300]}" if lines else ""
        return {"running": state.running, "sentence": state.sentence + last_line, "last_line": last_line}

    def _wait_for_end(self) -> dict[str, Any]:
        deadline = time.monotonic() + _END_S
        while (state := self._get_state())["running"] and time.monotonic() < deadline:
            time.sleep(0.1)
        return {**state, "sentence": "is running, but its agent ended"} if state["running"] else state

    def _state_of(self, task: processes.BackgroundTask) -> dict[str, Any]:
        try:
            state: dict[str, Any] = task.result()
        except RuntimeError as error:
            return {"running": None, "sentence": f"ended, and Docker does not report why: {error}", "last_line": ""}
        return state

    def _send(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.send(json.dumps(message).encode() + b"\n")

    def _disconnect(self) -> None:
        if self._peer is not None:
            if self._peer in self._link.others:
                self._link.others.remove(self._peer)
            self._peer.close()
