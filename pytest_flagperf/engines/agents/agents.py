"""The agents of a round, one on each host: requests to them, and their messages as one stream."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost, InvalidReply, Message, silence
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.plan import StoredHost

from .lost_hosts import connect_to_agent, give_up_time, reconnect_to_agent
from .unpack import DEFAULT_LIMITS, LogsTooLarge

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger("flagperf.agents")
GRACE_S = 3.0  # seconds from SIGTERM to SIGKILL
MARGIN_S = 15.0  # additional seconds for a container's end or a slow host
_ACK_S = 1.0

_ANSWERS = frozenset(["hello", "pong", "leased", "busy", "released", "chunk", "attached", "end", "error"])

# Limit of unread answers: more of them could fill the controller's memory.
_MOST_ANSWERS = 16

Note = Callable[[str], None]


class Refused(HostError):
    """An agent refused an order."""


def refusal(host: str, answer: Message) -> HostError:
    """Return the exception for an agent's answer of the type ``error``."""
    if answer.get("limit"):
        return LogsTooLarge(answer["sentence"])
    return Refused(f"{host}: its agent refused: {answer['sentence']}")


@dataclass
class HostAgent:
    """The controller's view of a host's agent: its connection, and its messages so far."""

    host: Host
    noderank: int
    directory: Path  # the round's directory on this machine
    channel: Channel
    lease_s: float
    code: Code | None = None  # the deployed code that it runs; None for an agent of another controller
    docker: str | None = None  # socket of the container engine of the round's container
    log_dir: str = ""
    code_root: str = ""
    cpus: tuple[int, ...] = ()
    port: int = 0
    clock_offset_s: float = 0.0  # the host's clock minus ours
    devices: tuple[int, ...] = ()
    started: bool = False
    end_s: float = GRACE_S + MARGIN_S  # maximum time from a request to stop to its last message
    exits: dict[int, Message] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    failed: dict[int, Message] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    slow: dict[str, float] = field(default_factory=dict)  # by rank: step time relative to the host's median
    over: bool = False  # its ranks have ended and its devices are free
    gone: str | None = None  # why no more messages will come
    stream_ended: bool = False  # all its messages, the last one included, are queued
    removed: bool = False  # the round does not use it; its messages are ignored
    lost: str | None = None  # why it is unreachable at the moment
    losses: int = 0  # number of losses: requests from before a loss get no answer
    seq: int = 0
    answers: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def done(self) -> bool:
        """Return True if no more messages are expected."""
        return self.over or self.stream_ended or not self.started

    @property
    def folder(self) -> Path:
        """The folder of its logs on this machine."""
        return self.directory / host_folder(self.host.name, self.noderank)

    def send(self, message: Message) -> None:
        _log.debug("%s: sent %s", self.name, message["op"])
        self.channel.send(message)

    def ask(self, message: Message, *answers: str, timeout_s: float = silence.ANSWER_S) -> Message:
        """Send a message and return the answer of one of these types."""
        self.send(message)
        return self.expect(*answers, timeout_s=timeout_s)

    def expect(self, *answers: str, timeout_s: float = silence.ANSWER_S) -> Message:
        """Return the next answer of one of these types."""
        deadline, losses = time.monotonic() + timeout_s, self.losses
        while not (self.gone and self.answers.empty()):
            with suppress(queue.Empty):
                answer = self.answers.get(timeout=min(0.2, max(0.0, deadline - time.monotonic())))
                if answer["type"] in answers:
                    return answer
                if answer["type"] == "error":
                    raise refusal(self.name, answer)
                if time.monotonic() < deadline:
                    continue
            if self.losses > losses and not self.gone:
                raise HostLost(f"{self.name}: {self.lost or 'the connection was lost meanwhile'}")
            if time.monotonic() >= deadline:
                raise HostError(f"{self.name}: no {' or '.join(answers)} in {timeout_s:g} s")
        has_name = str(self.gone).startswith(f"{self.name} ")
        raise HostLost(str(self.gone) if has_name else f"{self.name}: {self.gone}")


class Agents:
    """All agents of a round, from the first message to the last."""

    def __init__(
        self, note: Note = lambda _: None, limits: LogLimits = DEFAULT_LIMITS, passing: Note = lambda _: None
    ) -> None:
        self.all: list[HostAgent] = []
        self.limits = limits
        self.passing = passing
        self._note = note
        self._messages: queue.SimpleQueue[tuple[HostAgent, Message]] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._stopped_at: float | None = None
        self._stop_reason: str | None = None
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closing:
            self.dismiss()

    def join(self, agent: HostAgent) -> None:
        """Add an agent and read its messages from now on."""
        self.all.append(agent)
        reader = threading.Thread(target=self._read_all, args=(agent,), name=f"agent of {agent.name}", daemon=True)
        self._readers.append(reader)
        reader.start()

    def remove(self, agent: HostAgent) -> None:
        """Remove an agent that the round does not use, with its files."""
        self.all.remove(agent)
        agent.removed = True
        _leave(agent, remove=True)
        if agent.stream_ended:
            agent.channel.close(GRACE_S)

    def start(self, orders: Sequence[Message]) -> None:
        for agent, order in zip(self.all, orders, strict=True):
            agent.started = True
            agent.docker = order["container"].get("socket") if order.get("container") else None
            agent.send(order)

    def messages(self) -> Iterator[tuple[HostAgent, Message]]:
        """Yield all messages until every agent is over or gone; TimeoutError if a stopped agent does not end."""
        # In this order: only after all agents are done, an empty queue stays empty.
        while not all(agent.done for agent in self.all) or not self._messages.empty():
            with suppress(queue.Empty):
                agent, message = self._messages.get(timeout=0.5)
                if not agent.removed:
                    yield agent, message
            if self._stopped_at is not None:
                since = time.monotonic() - self._stopped_at
                running = [agent.name for agent in self.all if since > agent.end_s and not (agent.over or agent.gone)]
                if running:
                    raise TimeoutError(f"no end message from {', '.join(running)}")

    def stop(self, reason: str) -> None:
        """Ask all agents to end their ranks; an unreachable agent ends them when its lease is over."""
        if self._stopped_at is not None:
            return
        self._stopped_at, self._stop_reason = time.monotonic(), reason
        for agent in self.all:
            if agent.started and not (agent.over or agent.gone):
                with suppress(HostError):
                    agent.send({"op": "stop", "reason": reason})

    def dismiss(self, keep: Collection[str] = ()) -> None:
        """End all reachable agents; agents named in ``keep`` leave their logs on their hosts."""
        self._closing = True
        for agent in self.all:
            _leave(agent, remove=not agent.host.is_local and agent.name not in keep)
        with ThreadPoolExecutor(max(1, len(self.all))) as pool:
            list(pool.map(lambda agent: agent.channel.close(GRACE_S), self.all))
        for reader in self._readers:
            reader.join(GRACE_S)

    # -- messages ------------------------------------------------------------------------------------------

    def _read_all(self, agent: HostAgent) -> None:
        try:
            while self._listen(agent):
                pass
        except InvalidReply as error:
            agent.gone = str(error)
            self._messages.put((agent, {"type": "fault", "kind": "agent", "rank": None, "sentence": agent.gone}))
        except (HostError, OSError, ValueError) as error:
            agent.gone = agent.gone or str(error)
        agent.gone = agent.gone or "it exited"
        self._messages.put((agent, {"type": "gone", "why": agent.gone}))
        agent.stream_ended = True
        if agent.removed:
            agent.channel.close(GRACE_S)

    def _listen(self, agent: HostAgent) -> bool:
        """Take the agent's messages until the connection ends; return True if a new connection replaces it."""
        received_at = acked_at = time.monotonic()
        try:
            while True:
                try:
                    message = agent.channel.receive(_ACK_S)
                except TimeoutError:
                    message = {}
                now = time.monotonic()
                if message is None:
                    agent.gone = self._last_error(agent)
                    return False
                if message:
                    received_at = now
                    _log.debug("%s: received %s", agent.name, message["type"])
                    self._take(agent, message)
                elif agent.started and not agent.over and now - received_at > silence.AGENT_S:
                    raise HostError(f"no message from its agent for {silence.AGENT_S:g} s")
                if now - acked_at >= _ACK_S:
                    acked_at = now
                    _acknowledge(agent)
        except HostLost as error:
            return self._reconnect(agent, str(error))

    def _last_error(self, agent: HostAgent) -> str:
        return agent.channel.error_output().strip() or "no reason given"

    def _take(self, agent: HostAgent, message: Message) -> None:
        if message["type"] in _ANSWERS:
            if agent.answers.qsize() >= _MOST_ANSWERS:
                raise InvalidReply(agent.name, f"{message['type']} without an order; expected answers to orders only")
            agent.answers.put(message)
            return
        seq = int(message.get("seq", 0))
        if seq and seq <= agent.seq:
            return  # already received
        agent.seq = max(agent.seq, seq)
        self._messages.put((agent, message))
        if message["type"] == "over":
            agent.over = True

    def _reconnect(self, agent: HostAgent, why: str) -> bool:
        """Reach a lost host's agent again; give up when its lease is over."""
        if self._closing or not agent.log_dir:
            agent.gone = why
            return False
        agent.lost = why
        agent.losses += 1
        self._report(agent, "lost", f"{agent.name} is lost ({why}); its ranks continue for {agent.lease_s:g} s")
        deadline = time.monotonic() + agent.lease_s

        def is_given_up() -> bool:
            return self._closing or time.monotonic() >= give_up_time(deadline, self._stopped_at)

        try:
            channel, why = reconnect_to_agent(agent.host, agent.log_dir, agent.seq, why, is_given_up)
        except HostError as error:
            agent.gone, agent.lost = f"{agent.lost}; after the host came back: {error}", None
            return False
        if channel is None:
            agent.gone = why
            return False
        agent.channel, agent.lost = channel, None
        self._report(agent, "back", f"{agent.name} is back")
        self._resend_stop(agent)
        return True

    def _resend_stop(self, agent: HostAgent) -> None:
        """Send again the stop or leave order that was sent while the link was cut."""
        if self._closing or agent.removed:
            _leave(agent, remove=agent.removed)
        elif self._stop_reason is not None:
            with suppress(HostError):
                agent.send({"op": "stop", "reason": self._stop_reason})

    def _report(self, agent: HostAgent, kind: str, sentence: str) -> None:
        agent.warnings.append(sentence)
        self._note(sentence)
        self._messages.put((agent, {"type": kind, "sentence": sentence}))


def attach_agent(host: Host, directory: Path, placed: StoredHost, lease_s: float) -> HostAgent:
    """Return the agent of a round that another controller started, from its plan.json."""
    return HostAgent(
        host,
        placed.noderank,
        directory,
        connect_to_agent(host, placed.log_dir, 0),
        lease_s,
        log_dir=placed.log_dir,
        code_root=placed.code_root,
        clock_offset_s=placed.clock_offset_s,
        devices=placed.devices,
        started=True,
    )


def _acknowledge(agent: HostAgent) -> None:
    """Acknowledge the messages so that the agent can drop them; ignore an agent that has ended."""
    try:
        agent.send({"op": "ack", "seq": agent.seq})
    except HostLost:
        raise
    except HostError:
        return


def _leave(agent: HostAgent, *, remove: bool) -> None:
    with suppress(HostError):
        agent.send({"op": "leave", "remove": remove})
