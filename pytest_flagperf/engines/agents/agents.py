"""The agents of a round, one on each host: what they are asked, and what they say as one stream."""

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
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost, InvalidReply, Message
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.plan import StoredHost

from .lost_hosts import ANSWER_S, attached, latest_return, reach_again
from .unpack import DEFAULT_LIMITS, TooMuch

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("flagperf.agents")
GRACE_S = 3.0  # from a polite word to SIGKILL
MARGIN_S = 15.0  # what an agent may need beyond it: a container's end, a slow host
# An agent that watches ranks says something every second; one that is silent for so long is stuck.
SILENCE_S = 60.0
_ACK_S = 1.0

_ANSWERS = frozenset(["hello", "pong", "leased", "busy", "released", "chunk", "attached", "end", "error"])

# More answers than that, without a question: a host that sends them fills our memory.
_MOST_ANSWERS = 16

Note = Callable[[str], None]


class Refused(HostError):
    """An agent refused an order."""


def refusal(host: str, answer: Message) -> HostError:
    """The error for an agent's answer of the type ``error``."""
    if answer.get("limit"):
        return TooMuch(answer["sentence"])
    return Refused(f"{host}: its agent refuses: {answer['sentence']}")


@dataclass
class Agent:
    """One host's agent, and what it has said so far that the round's end is made of."""

    host: Host
    noderank: int
    directory: Path  # the round's, here
    channel: Channel
    lease_s: float
    code: Code | None = None  # what it runs, where we brought it there
    docker: str | None = None  # the socket of the engine that has the round's container
    log_dir: str = ""
    code_root: str = ""
    cpus: tuple[int, ...] = ()
    port: int = 0
    clock_offset_s: float = 0.0  # the host's clock minus ours
    devices: tuple[int, ...] = ()
    started: bool = False
    by_launcher: bool = False  # one process that stands for several ranks
    exits: dict[int, Message] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    failed: dict[int, Message] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    slow: dict[str, float] = field(default_factory=dict)  # ranks that fell behind the host's others, and how far
    over: bool = False  # its ranks have ended, its devices are free
    gone: str | None = None  # why nothing more will come
    heard_out: bool = False  # and all that came, that word too, is among the messages of all
    parted: bool = False  # it was not wanted after all; what it says does not matter
    lost: str | None = None  # why it cannot be reached at the moment
    losses: int = 0  # how often that was so: what was asked before is not answered after
    seq: int = 0
    answers: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.over or self.heard_out or not self.started

    @property
    def folder(self) -> Path:
        """Where its logs are in the end, here."""
        return self.directory / host_folder(self.host.name, self.noderank)

    def send(self, message: Message) -> None:
        _log.debug("%s: sent %s", self.name, message["op"])
        self.channel.send(message)

    def ask(self, message: Message, *answers: str, timeout_s: float = ANSWER_S) -> Message:
        """Send, and wait for the answer of one of these types."""
        self.send(message)
        return self.expect(*answers, timeout_s=timeout_s)

    def expect(self, *answers: str, timeout_s: float = ANSWER_S) -> Message:
        """The next answer of one of these types."""
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
        named = str(self.gone).startswith(f"{self.name} ")
        raise HostLost(str(self.gone) if named else f"{self.name}: {self.gone}")


class Agents:
    """All agents of a round, from the first word to the last."""

    def __init__(self, note: Note = lambda _: None, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.all: list[Agent] = []
        self.limits = limits
        self._note = note
        self._said: queue.SimpleQueue[tuple[Agent, Message]] = queue.SimpleQueue()
        self._pumps: list[threading.Thread] = []
        self._stopped_at: float | None = None
        self._stop_reason: str | None = None
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closing:
            self.dismiss()

    def join(self, agent: Agent) -> None:
        """Listen to it from now on."""
        self.all.append(agent)
        pump = threading.Thread(target=self._pump, args=(agent,), name=f"agent of {agent.name}", daemon=True)
        self._pumps.append(pump)
        pump.start()

    def part_with(self, agent: Agent) -> None:
        """Let one go that is not wanted after all; it leaves nothing."""
        self.all.remove(agent)
        agent.parted = True
        _leave(agent, remove=True)
        if agent.heard_out:
            agent.channel.close(GRACE_S)

    def start(self, orders: Sequence[Message]) -> None:
        for agent, order in zip(self.all, orders, strict=True):
            agent.by_launcher = len(order["follow"]) > len(order["ranks"])
            agent.started = True
            agent.docker = order["container"]["socket"] if order.get("container") else None
            agent.send(order)

    def messages(self) -> Iterator[tuple[Agent, Message]]:
        """What they say, until each is over or gone; TimeoutError where one does not stop though it was told to."""
        # In this order: who is done has said it all, and only then an empty queue stays so.
        while not all(agent.done for agent in self.all) or not self._said.empty():
            with suppress(queue.Empty):
                agent, message = self._said.get(timeout=0.5)
                if not agent.parted:
                    yield agent, message
            if self._stopped_at is not None and time.monotonic() > self._stopped_at + GRACE_S + MARGIN_S:
                late = ", ".join(agent.name for agent in self.all if not (agent.over or agent.gone))
                if late:
                    raise TimeoutError(f"no word of the end from {late}")

    def stop(self, reason: str) -> None:
        """Ask all to end their ranks; one that cannot be asked ends them when its lease is over."""
        if self._stopped_at is not None:
            return
        self._stopped_at, self._stop_reason = time.monotonic(), reason
        for agent in self.all:
            if agent.started and not (agent.over or agent.gone):
                with suppress(HostError):
                    agent.send({"op": "stop", "reason": reason})

    def dismiss(self, keep: Collection[str] = ()) -> None:
        """No agent outlives this where it can be reached; those on ``keep`` leave their logs where they are."""
        self._closing = True
        for agent in self.all:
            _leave(agent, remove=not agent.host.here and agent.name not in keep)
        with ThreadPoolExecutor(max(1, len(self.all))) as pool:
            list(pool.map(lambda agent: agent.channel.close(GRACE_S), self.all))
        for pump in self._pumps:
            pump.join(GRACE_S)

    # -- listening -----------------------------------------------------------------------------------------

    def _pump(self, agent: Agent) -> None:
        try:
            while self._listen(agent):
                pass
        except InvalidReply as error:
            agent.gone = str(error)
            self._said.put((agent, {"type": "fault", "kind": "agent", "rank": None, "sentence": agent.gone}))
        except (HostError, OSError, ValueError) as error:
            agent.gone = agent.gone or str(error)
        agent.gone = agent.gone or "it ended"
        self._said.put((agent, {"type": "gone", "why": agent.gone}))
        agent.heard_out = True
        if agent.parted:
            agent.channel.close(GRACE_S)

    def _listen(self, agent: Agent) -> bool:
        """Take what it says until the connection ends; whether there is another one to listen to."""
        heard = acked = time.monotonic()
        try:
            while True:
                try:
                    message = agent.channel.receive(_ACK_S)
                except TimeoutError:
                    message = {}
                now = time.monotonic()
                if message is None:
                    agent.gone = self._last_word(agent)
                    return False
                if message:
                    heard = now
                    _log.debug("%s: received %s", agent.name, message["type"])
                    self._take(agent, message)
                elif agent.started and not agent.over and now - heard > SILENCE_S:
                    raise HostError(f"its agent has said nothing for {SILENCE_S:g} s")
                if now - acked >= _ACK_S:
                    acked = now
                    _confirm(agent)
        except HostLost as error:
            return self._take_up_again(agent, str(error))

    def _last_word(self, agent: Agent) -> str:
        return agent.channel.complaint().strip() or "it said nothing of why"

    def _take(self, agent: Agent, message: Message) -> None:
        if message["type"] in _ANSWERS:
            if agent.answers.qsize() >= _MOST_ANSWERS:
                raise InvalidReply(agent.name, f"{message['type']}, unasked; expected answers to orders only")
            agent.answers.put(message)
            return
        seq = int(message.get("seq", 0))
        if seq and seq <= agent.seq:
            return  # sent again, and here already
        agent.seq = max(agent.seq, seq)
        self._said.put((agent, message))
        if message["type"] == "over":
            agent.over = True

    def _take_up_again(self, agent: Agent, why: str) -> bool:
        """Reach a lost host's agent again, until its lease must be over."""
        if self._closing or not agent.log_dir:
            agent.gone = why
            return False
        agent.lost = why
        agent.losses += 1
        self._say(agent, "lost", f"{agent.name} is lost ({why}); its ranks go on for {agent.lease_s:g} s")
        deadline = time.monotonic() + agent.lease_s

        def is_given_up() -> bool:
            return self._closing or time.monotonic() >= latest_return(deadline, self._stopped_at)

        try:
            channel, why = reach_again(agent.host, agent.log_dir, agent.seq, why, is_given_up)
        except HostError as error:
            agent.gone, agent.lost = f"{agent.lost}; when the host was back, {error}", None
            return False
        if channel is None:
            agent.gone = why
            return False
        agent.channel, agent.lost = channel, None
        self._say(agent, "back", f"{agent.name} is back")
        self._tell_what_it_missed(agent)
        return True

    def _tell_what_it_missed(self, agent: Agent) -> None:
        """What all were told went nowhere where a link was cut."""
        if self._closing or agent.parted:
            _leave(agent, remove=agent.parted)
        elif self._stop_reason is not None:
            with suppress(HostError):
                agent.send({"op": "stop", "reason": self._stop_reason})

    def _say(self, agent: Agent, kind: str, sentence: str) -> None:
        agent.warnings.append(sentence)
        self._note(sentence)
        self._said.put((agent, {"type": kind, "sentence": sentence}))


def take_up(host: Host, directory: Path, placed: StoredHost, lease_s: float) -> Agent:
    """The agent of a round that another controller started, as its plan.json says."""
    return Agent(
        host,
        placed.noderank,
        directory,
        attached(host, placed.log_dir, 0),
        lease_s,
        log_dir=placed.log_dir,
        code_root=placed.code_root,
        clock_offset_s=placed.clock_offset_s,
        devices=placed.devices,
        started=True,
    )


def _confirm(agent: Agent) -> None:
    """What it said need not be kept there. One that has ended cannot hear it; what it said before is still to come."""
    try:
        agent.send({"op": "ack", "seq": agent.seq})
    except HostLost:
        raise
    except HostError:
        return


def _leave(agent: Agent, *, remove: bool) -> None:
    with suppress(HostError):
        agent.send({"op": "leave", "remove": remove})
