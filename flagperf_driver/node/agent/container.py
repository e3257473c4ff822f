"""A round in a container: an agent of its own supervises the ranks in there, and this one passes on what it says.

The container was created by the harness. It is started here, its agent calls back on ``inner.sock`` in the log
folder, and whatever happens it is removed in the end. Docker is asked by a child, so that nothing waits for it.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Callable

from flagperf_driver import events
from flagperf_driver.node import processes
from flagperf_driver.node.agent.connections import Connection, ControllerLink, Listener, Message
from flagperf_driver.node.agent.messages import Messages
from flagperf_driver.node.agent.rank_orders import RankOrders
from flagperf_driver.node.agent.timer import Timer
from flagperf_driver.node.folder import INNER_SOCKET

_BEAT_S = 1.0
_CALL_S = 60.0  # for the agent in there to call, from the container's start
_LOOK_S = 0.5  # between two looks at a container that does not answer
_SETTLED_S = 3.0  # for Docker to see that a container has ended
_SILENT_S = 30.0  # an agent says something every second; one that does not is paused or stuck with its container
_LONGEST_TICK_S = 2.0  # a pause of our own, with the whole host's, is not its silence
_BEYOND_GRACE_S = 20.0  # what the agent in there may need to end its ranks beyond their grace
_REMOVE_FOR_S = 20.0  # Docker may be just restarting


class RoundContainer:
    """One round's container on this host, from its start to its removal."""

    def __init__(
        self,
        order: Message,
        orders: RankOrders,
        messages: Messages,
        wire: ControllerLink,
        reaper: processes.Reaper,
    ) -> None:
        # Imported here because it imports http, which a round without a container does not need.
        from flagperf_driver.node.docker_engine import DockerEngine

        self._order = order
        self._orders = orders
        self._messages = messages
        self._wire = wire
        self._reaper = reaper
        self._id = str(order["container"]["id"])
        self._socket = str(order["container"]["socket"])
        self._engine = DockerEngine(self._socket)
        self._waiting = {each.rank for each in orders.ranks}  # whose end is not known yet
        self._task: tuple[processes.BackgroundTask, Callable[[processes.BackgroundTask], None]] | None = None
        self._timer = Timer()
        self._timer.every(_BEAT_S, self._feel_silence)
        self._door: Listener | None = None
        self._peer: Connection | None = None
        self._call_by = 0.0
        self._heard = 0  # the last number of what the inner agent said
        self._heard_before = 0
        self._silent_s = 0.0
        self._ending = False
        self._removing = False
        self._give_up_at = 0.0
        self._warned = False
        self.over = False

    def start(self) -> None:
        self._reaper.watch_container(self._socket, self._id)
        self._door = Listener(INNER_SOCKET)
        self._wire.others.append(self._door)
        self._send(self._started, lambda: self._engine.start(self._id))
        self._beat()

    def turn(self) -> None:
        """Do what is to be done now; called often, and at once when something has come."""
        if self._task is not None and self._task[0].ended():
            (task, then), self._task = self._task, None
            then(task)
        self._let_in()
        if self._peer is not None:
            self._relay(self._peer)
        self._timer.do_what_is_due()

    def end(self, reason: str) -> None:
        """Have all ranks end, by their own agent if it is there."""
        if self._ending:
            return
        self._messages.note(f"told to stop: {reason}")
        self._ending = True
        if self._peer is not None and not self._peer.ended:
            self._say({"op": "stop", "reason": reason})
            self._timer.after(self._orders.grace_s + _BEYOND_GRACE_S, self._remove)
        elif self._task is None:
            self._remove()

    def fail(self, kind: str, rank: int | None, sentence: str) -> None:
        """Tell the fault; it does not end the ranks. What goes wrong at their end is none."""
        if not self._ending:
            self._messages.fault(kind, rank, sentence)

    def abandon(self) -> None:
        """Nothing of the container may survive, whatever happened to this process."""
        if not self.over:
            with suppress(RuntimeError):
                self._engine.remove(self._id, force=True)

    # -- its start -----------------------------------------------------------------------------------------

    def _started(self, task: processes.BackgroundTask) -> None:
        try:
            task.answer()
        except RuntimeError as error:
            self._broke(f"could not be started: {error}")
            return
        self._messages.note(f"container {self._id[:12]} started")
        self._call_by = time.monotonic() + _CALL_S
        if self._ending:
            self._remove()
        else:
            self._timer.after(_LOOK_S, self._look_whether_it_calls)

    def _look_whether_it_calls(self) -> None:
        if self._peer is None and not self._removing:
            self._send(self._judge_the_silent, self._look)

    def _judge_the_silent(self, task: processes.BackgroundTask) -> None:
        """A container that has not called is given time, as long as it runs."""
        found = self._found(task)
        if self._peer is not None or self._removing:
            return
        if self._ending:
            self._remove()
        elif found["running"] is False:
            self._broke(found["sentence"])
        elif time.monotonic() > self._call_by:
            self._broke(f"runs, but its agent did not call within {_CALL_S:g} s{found['said']}")
        else:
            self._timer.after(_LOOK_S, self._look_whether_it_calls)

    def _let_in(self) -> None:
        if self._door is None or self._peer is not None or not self._door.arrived:
            return
        self._peer = self._door.arrived.pop(0)
        self._wire.others.append(self._peer)
        self._shut()
        self._say({"op": "hello", "lease_s": 0})
        # The rest of the order is for the host, and done.
        self._say({**self._order, "container": None, "monitors": None, "clear_caches": False, "files": None})

    def _shut(self) -> None:
        if self._door is not None:
            self._wire.others.remove(self._door)
            self._door.close()
            self._door = None

    # -- while it runs -------------------------------------------------------------------------------------

    def _relay(self, peer: Connection) -> None:
        """Pass on what the agent in there says, under numbers of our own."""
        before = self._heard
        for message in peer.messages():
            self._pass_on(message)
        if self._heard > before:
            self._say({"op": "ack", "seq": self._heard})
        if peer.ended and not self._removing and self._task is None:
            self._hang_up()
            self._send(self._explain, self._look_until_it_has_ended)

    def _feel_silence(self, passed_s: float) -> None:
        """End a container whose agent says nothing any more."""
        if self._peer is None or self._removing or self._heard != self._heard_before:
            self._silent_s, self._heard_before = 0.0, self._heard
            return
        self._silent_s += min(passed_s, _LONGEST_TICK_S)
        if self._silent_s >= _SILENT_S:
            self._broke(f"has said nothing for {_SILENT_S:g} s: it is paused, or stuck in the kernel")

    def _pass_on(self, message: Message) -> None:
        body = dict(message)
        kind = body.get("type")
        if kind == "error":
            self.fail("container", None, f"the agent in the container refused: {body.get('sentence')}")
            self.end("its orders were refused")
        if "seq" not in body:
            return
        self._heard = int(body.pop("seq"))
        if kind == "over":
            self._remove()
        elif kind == "fault":
            self.fail(str(body["kind"]), body.get("rank"), str(body["sentence"]))
        else:
            if kind == "exit":
                self._waiting.discard(int(body["rank"]))
            expendable = kind in ("beat", "lines") or body.get("event") not in (None, events.FAILED, events.FINISHED)
            if kind != "beat" or self._messages.heard:
                self._messages.tell(body, expendable)

    def _beat(self) -> None:
        """Say that we are there for as long as nobody in the container does."""
        if self._peer is None and not self.over:
            self._messages.alive()
            self._timer.after(_BEAT_S, self._beat)

    def _explain(self, task: processes.BackgroundTask) -> None:
        self._broke(self._found(task)["sentence"])

    def _broke(self, what: str) -> None:
        ranks = sorted(self._waiting)
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}" if ranks else "all ranks"
        self.fail("container", ranks[0] if ranks else None, f"the container of {whose} {what}")
        self._remove()

    # -- its end -------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        if self._removing:
            return
        self._removing = True
        self._say({"op": "leave"})
        self._give_up_at = time.monotonic() + _REMOVE_FOR_S
        self._try_to_remove()

    def _try_to_remove(self) -> None:
        if self._task is not None:  # what was asked before is still to be answered
            self._timer.after(0.05, self._try_to_remove)
            return
        self._send(self._removed, lambda: self._engine.remove(self._id, force=True))

    def _removed(self, task: processes.BackgroundTask) -> None:
        try:
            task.answer()
        except RuntimeError as error:
            self._try_again(str(error))
            return
        self._messages.note(f"container {self._id[:12]} removed")
        self._finish()

    def _try_again(self, why: str) -> None:
        late = time.monotonic() > self._give_up_at
        if late or not self._warned:
            self._warned = True
            stays = "stays behind until the next run here removes it" if late else "cannot be removed yet"
            self._messages.warning(f"container {self._id[:12]} {stays}: {why}")
        if late:
            self._finish()
        else:
            self._timer.after(1.0, self._try_to_remove)

    def _finish(self) -> None:
        self._hang_up()
        self._shut()
        for rank in sorted(self._waiting):
            self._messages.exit(rank, cause="stopped" if self._ending else "crash")
        self.over = True

    # -- helpers -------------------------------------------------------------------------------------------

    def _send(self, then: Callable[[processes.BackgroundTask], None], call: Callable[[], Any]) -> None:
        """Have a child ask Docker, and call ``then`` when it is back."""
        self._task = (processes.BackgroundTask(call), then)

    def _look(self) -> dict[str, Any]:
        state = self._engine.state(self._id)
        lines = [line.strip() for line in self._engine.logs(self._id).splitlines() if line.strip()]
        said = f"; its last line: {lines[-1][:300]}" if lines else ""
        return {"running": state.running, "sentence": state.sentence + said, "said": said}

    def _look_until_it_has_ended(self) -> dict[str, Any]:
        until = time.monotonic() + _SETTLED_S
        while (found := self._look())["running"] and time.monotonic() < until:
            time.sleep(0.1)
        return {**found, "sentence": "lost its agent"} if found["running"] else found

    def _found(self, task: processes.BackgroundTask) -> dict[str, Any]:
        try:
            found: dict[str, Any] = task.answer()
        except RuntimeError as error:
            return {"running": None, "sentence": f"is gone, and Docker cannot say why: {error}", "said": ""}
        return found

    def _say(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.send(json.dumps(message).encode() + b"\n")

    def _hang_up(self) -> None:
        if self._peer is not None:
            if self._peer in self._wire.others:
                self._wire.others.remove(self._peer)
            self._peer.close()
