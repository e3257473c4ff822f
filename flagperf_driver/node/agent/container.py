"""Run a round in a container: a second agent supervises the ranks there, and this agent forwards its messages.

This module starts the container, waits until its agent connects to ``inner.sock`` in the log folder, and removes the
container in the end in any case. The kinds of containers are in container_kinds.py.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Callable

from flagperf_driver.node import processes, silence
from flagperf_driver.node.agent import container_kinds
from flagperf_driver.node.agent.connections import ControllerLink, Message, MessageConnection, SocketListener
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.ranks import RankOrders
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.folder import INNER_SOCKET

_BEAT_S = 1.0
_CONNECT_S = 60.0  # maximum time from the container's start to the connection of its agent
_POLL_S = 0.5  # between two checks of a container whose agent has not connected
_AFTER_GRACE_S = 20.0  # time for the inner agent to end its ranks, in addition to their grace
_REMOVE_FOR_S = 20.0  # Docker may be restarting


class ContainerSupervisor:
    """One round's container on this host, from its start to its removal."""

    def __init__(
        self,
        order: Message,
        orders: RankOrders,
        messages: Messages,
        link: ControllerLink,
        reaper: processes.Reaper,
    ) -> None:
        self._order = order
        self._orders = orders
        self._messages = messages
        self._link = link
        self._reaper = reaper
        self._container = container_kinds.container_of(order["container"], messages.folder)
        self._not_ended = {order.rank for order in orders.ranks}
        self._task: (
            tuple[container_kinds.ContainerOperation, Callable[[container_kinds.ContainerOperation], None]] | None
        ) = None
        self._timer = Timer()
        self._timer.every(_BEAT_S, self._check_silence)
        self._listener: SocketListener | None = None
        self._peer: MessageConnection | None = None
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
        self._container.guard_by(self._reaper)
        self._listener = SocketListener(INNER_SOCKET)
        self._link.others.append(self._listener)
        self._task = self._container.start(), self._on_started
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

    def strike(self, rank: int) -> None:
        """Kill a rank, as if somebody did; the agent did not end it."""
        self._send({"op": "strike", "rank": rank})

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
                self._container.abandon()

    # -- start ---------------------------------------------------------------------------------------------

    def _on_started(self, task: container_kinds.ContainerOperation) -> None:
        try:
            task.result()
        except RuntimeError as error:
            self._container_failed(f"could not be started: {error}")
            return
        self._messages.note(f"{self._container.name} started")
        self._connect_by = time.monotonic() + _CONNECT_S
        if self._ending:
            self._remove()
        else:
            self._timer.after(_POLL_S, self._check_connected)

    def _check_connected(self) -> None:
        if self._peer is None and not self._removing:
            self._task = self._container.state(), self._on_state

    def _on_state(self, task: container_kinds.ContainerOperation) -> None:
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
        done = {"container": None, "monitors": None, "clear_caches": False, "files": None}
        self._send({**self._order, **done, "limits_memory": self._container.limits_memory})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._link.others.remove(self._listener)
            self._listener.close()
            self._listener = None

    # -- while it runs -------------------------------------------------------------------------------------

    def _relay(self, peer: MessageConnection) -> None:
        """Forward the messages of the inner agent; the link to the controller numbers them again."""
        previous_seq = self._last_seq
        for message in peer.messages():
            self._forward(message)
        if self._last_seq > previous_seq:
            self._send({"op": "ack", "seq": self._last_seq})
        if peer.ended and not self._removing and self._task is None:
            self._disconnect()
            self._task = self._container.end_state(), self._on_end

    def _check_silence(self, passed_s: float) -> None:
        """Remove the container if its agent no longer sends messages, or if only its program has ended."""
        if self._peer is not None and self._container.gone and not self._removing and self._task is None:
            self._disconnect()
            self._task = self._container.end_state(), self._on_end
            return
        if self._peer is None or self._removing or self._last_seq != self._previous_seq:
            self._silent_s, self._previous_seq = 0.0, self._last_seq
            return
        self._silent_s = silence.longer(self._silent_s, passed_s)
        if self._silent_s >= silence.CONTAINER_S:
            silent = f"has sent nothing for {silence.CONTAINER_S:g} s"
            self._container_failed(f"{silent}: it is paused, or stuck in the kernel")

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
        elif kind == "exit":
            self._not_ended.discard(int(body["rank"]))
            self._messages.send_exit(body)
        else:
            (self._messages.tell if kind == "beat" else self._messages.send)(body)

    def _beat(self) -> None:
        """Send beats to the controller until the inner agent does."""
        if self._peer is None and not self.over:
            self._messages.alive()
            self._timer.after(_BEAT_S, self._beat)

    def _on_end(self, task: container_kinds.ContainerOperation) -> None:
        state = self._state_of(task)
        self._container_failed("is running, but its agent ended" if state["running"] else state["sentence"])

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
        if self._task is not None:  # the previous operation has not ended yet
            self._timer.after(0.05, self._try_to_remove)
            return
        self._task = self._container.remove(), self._on_removed

    def _on_removed(self, task: container_kinds.ContainerOperation) -> None:
        try:
            task.result()
        except RuntimeError as error:
            self._retry_removal(str(error))
            return
        self._messages.note(f"{self._container.name} removed")
        self._finish()

    def _retry_removal(self, reason: str) -> None:
        late = time.monotonic() > self._give_up_at
        if late or not self._warned:
            self._warned = True
            problem = "remains until the next run on this host removes it" if late else "cannot be removed yet"
            self._messages.warning(f"{self._container.name} {problem}: {reason}")
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

    def _state_of(self, task: container_kinds.ContainerOperation) -> dict[str, Any]:
        try:
            state: dict[str, Any] = task.result()
        except RuntimeError as error:
            return {"running": None, "sentence": f"ended, and the reason is not known: {error}", "last_line": ""}
        return state

    def _send(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.send(json.dumps(message).encode() + b"\n")

    def _disconnect(self) -> None:
        if self._peer is not None:
            if self._peer in self._link.others:
                self._link.others.remove(self._peer)
            self._peer.close()
