"""The agents of a round, one on each host: started where devices are free, and their messages as one stream."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flagperf_driver.node import device_lease
from flagperf_driver.node.agent.archive import LogLimits
from flagperf_driver.node.folder import EVENTS
from pytest_flagperf.hosts import Channel, Host, HostError, HostGone, HostLost, InvalidReply, Message, silence
from pytest_flagperf.hosts.clock import clock_offset
from pytest_flagperf.hosts.deploy import Code, attach, open_module
from pytest_flagperf.hosts.host_pool import AT_ONCE, HostPool, run_on_each
from pytest_flagperf.hosts.replies import check_reply, parse_line
from pytest_flagperf.progress import note
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.plan import StoredHost
from pytest_flagperf.stored.round_dir import HostSilence

from .unpack import DEFAULT_LIMITS, LogsTooLarge

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger("flagperf.agents")
MODULE = "flagperf_driver.node.agent.main"
GRACE_S = 3.0  # seconds from SIGTERM to SIGKILL
MARGIN_S = 15.0  # additional seconds for a container's end or a slow host
_AT_A_TIME = 200  # messages of an agent, so that the others have their turn
_LOOK_S = 0.05  # seconds between two looks at connections that do not tell when a message arrives
_TICK_S = 0.5
_RECONNECT_S = 1.0  # seconds between two attempts to reach a lost host
_AFTER_A_FAULT_S = 5.0  # a round that has already failed waits for a lost host at most this long
_CHECK_S = 0.5  # seconds between two checks that stopped agents end
_POLL_S = 0.25
_REPORT_EVERY_S = 10.0  # the shortest time between two lines about changed holders

_ANSWERS = frozenset(["hello", "pong", "leased", "busy", "released", "chunk", "attached", "end", "error"])

State = TypeVar("State", bound="Greeted")

# Limit of unread answers: more of them could fill the controller's memory.
_MOST_ANSWERS = 16


class Refused(HostError):
    """An agent refused an order."""


def refusal(host: str, answer: Message) -> HostError:
    """Return the exception for an agent's answer of the type ``error``."""
    if answer.get("limit"):
        return LogsTooLarge(answer["sentence"])
    return Refused(f"{host}: its agent refused: {answer['sentence']}")


@dataclass(frozen=True)
class Greeted:
    """The state of an agent that has its log folder, and no devices."""

    log_dir: str
    code_root: str = ""
    cpus: tuple[int, ...] = ()
    port: int = 0
    clock_offset_s: float = 0.0  # the host's clock minus ours

    def lease(self, devices: Sequence[int]) -> Leased:
        return Leased(**vars(self), devices=tuple(devices))


@dataclass(frozen=True)
class Leased(Greeted):
    """The state of an agent that holds devices for ranks, and has not got the order to start them."""

    devices: tuple[int, ...] = ()

    def release(self) -> Greeted:
        return Greeted(self.log_dir, self.code_root, self.cpus, self.port, self.clock_offset_s)

    def start(self, docker: str | None) -> Started:
        return Started(**vars(self), docker=docker)


@dataclass(frozen=True)
class Started(Leased):
    """The state of an agent that has got the order to start its ranks, and what it has reported of them."""

    docker: str | None = None  # socket of the container engine of the round's container
    exits: dict[int, Message] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    failed: dict[int, Message] = field(default_factory=dict)
    beats: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # the latest of each rank
    slow: dict[str, float] = field(default_factory=dict)  # by rank: step time relative to the host's median

    def take_exits(self, message: Message) -> None:
        """Take how a rank ended, or of the agent's last message which ranks ended well."""
        if message["type"] == "over":
            ended_well = message.get("ended_well", ())
            self.exits.update({rank: {"code": 0} for rank in ended_well})
            self.finished.update(ended_well)
        else:
            self.exits[message["rank"]] = message
            self.finished.update([message["rank"]] if message.get("finished") else ())

    def end(self) -> Ended:
        return Ended(**vars(self))


@dataclass(frozen=True)
class Ended(Started):
    """The state of an agent whose ranks have ended, and whose devices are free."""


@dataclass(eq=False)
class HostAgent:
    """The controller's view of a host's agent: how far its round is, and its connection."""

    host: Host
    noderank: int
    directory: Path  # the round's directory on this machine
    channel: Channel
    lease_s: float
    code: Code | None = None  # the deployed code that it runs; None for an agent of another controller
    state: Greeted | None = None  # None: it has not answered yet
    end_s: float = GRACE_S + MARGIN_S  # maximum time from a request to stop to its last message
    warnings: list[str] = field(default_factory=list)
    gone: str | None = None  # why no more messages will come
    stream_ended: bool = False  # all its messages, the last one included, are queued
    removed: bool = False  # the round does not use it; its messages are ignored
    lost: str | None = None  # why it is unreachable at the moment
    given_up: str | None = None  # why the round does not wait for the lost host any more
    heard_ms: int = 0  # when its latest message was taken
    silences: list[HostSilence] = field(default_factory=list)  # in which it was lost
    losses: int = 0  # number of losses: requests from before a loss get no answer
    seq: int = 0
    received_at: float = field(default_factory=time.monotonic)  # time of its last message
    answers: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def greeted(self) -> Greeted:
        return self._state_of(Greeted)

    @property
    def leased(self) -> Leased:
        return self._state_of(Leased)

    @property
    def started(self) -> Started:
        return self._state_of(Started)

    @property
    def is_started(self) -> bool:
        """Whether it has got the order to start its ranks, which may have ended since."""
        return isinstance(self.state, Started)

    @property
    def over(self) -> bool:
        """Whether its ranks have ended and its devices are free."""
        return isinstance(self.state, Ended)

    @property
    def done(self) -> bool:
        """Return True if no more messages are expected."""
        return self.over or self.stream_ended or not self.is_started

    def _state_of(self, kind: type[State]) -> State:
        if not isinstance(self.state, kind):
            state = type(self.state).__name__ if self.state else "not greeted"
            raise TypeError(f"{self.name}: its agent is {state}; expected {kind.__name__}")
        return self.state

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

    def __init__(self, limits: LogLimits = DEFAULT_LIMITS, *, restarts: bool = False, is_noted: bool = True) -> None:
        self.all: list[HostAgent] = []
        self.limits = limits  # of the logs from one host
        self.restarts = restarts  # whether a training that ends early is started again
        self.is_noted = is_noted  # False for a round beside another one of this process
        self._messages: queue.SimpleQueue[tuple[HostAgent, Message]] = queue.SimpleQueue()
        self._removed: list[HostAgent] = []
        self._helpers: list[threading.Thread] = []  # they read, and reach lost hosts again
        self._joining = threading.Lock()
        self._arrived: queue.SimpleQueue[HostAgent | None] = queue.SimpleQueue()  # None wakes up the thread that reads
        self._heard: set[HostAgent] = set()  # whose connections have not ended
        self._silent: set[HostAgent] = set()  # of these, those that do not tell when a message arrives
        self._reading = threading.Condition()
        self._dismissed = threading.Event()
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
        with self._joining:
            if not self._helpers:
                self._help("messages of agents", self._read_all)
            self.all.append(agent)
        self._listen(agent)

    def _listen(self, agent: HostAgent) -> None:
        """Read the messages of an agent from now on, in one thread for all: a thread for each keeps a core busy."""
        agent.received_at = time.monotonic()
        with self._reading:
            self._heard.add(agent)
        if not agent.channel.on_arrival(partial(self._arrived.put, agent)):
            with self._reading:
                self._silent.add(agent)
            self._arrived.put(agent)

    def _help(self, name: str, work: Callable[[], None]) -> None:
        self._helpers.append(threading.Thread(target=work, name=name, daemon=True))
        self._helpers[-1].start()

    def remove(self, agent: HostAgent) -> None:
        """Remove an agent that the round does not use, with its files."""
        self.all.remove(agent)
        self._removed.append(agent)
        agent.removed = True
        _leave(agent, remove=True)

    def start(self, orders: Sequence[Message]) -> None:
        for agent, order in zip(self.all, orders, strict=True):
            agent.state = agent.leased.start(order["container"].get("socket") if order.get("container") else None)
            agent.send(order)

    def messages(self) -> Iterator[tuple[HostAgent, Message]]:
        """Yield all messages until every agent is over or gone; TimeoutError if a stopped agent does not end."""
        expected, checked_at = list(self.all), 0.0
        while True:
            while expected and expected[-1].done:
                expected.pop()
            # In this order: only after all agents are done, an empty queue stays empty.
            if not expected and self._messages.empty():
                return
            with suppress(queue.Empty):
                agent, message = self._messages.get(timeout=_CHECK_S)
                if not agent.removed:
                    yield agent, message
            if self._stopped_at is not None and (now := time.monotonic()) - checked_at >= _CHECK_S:
                checked_at, since = now, now - self._stopped_at
                running = [agent.name for agent in self.all if since > agent.end_s and not (agent.over or agent.gone)]
                if running:
                    raise TimeoutError(f"no end message from {', '.join(running)}")

    def stop(self, reason: str) -> None:
        """Ask all agents to end their ranks; an unreachable agent ends them when its lease is over."""
        if self._stopped_at is not None:
            return
        self._stopped_at, self._stop_reason = time.monotonic(), reason
        for agent in self.all:
            if agent.is_started and not (agent.over or agent.gone):
                with suppress(HostError):
                    agent.send({"op": "stop", "reason": reason})

    def dismiss(self, keep: Collection[str] = ()) -> None:
        """End all reachable agents; agents named in ``keep`` leave their logs on their hosts."""
        self._closing = True
        for agent in self.all:
            _leave(agent, remove=not agent.host.is_local and agent.name not in keep)
        with self._reading:
            self._reading.wait_for(lambda: not self._heard, GRACE_S)
        self._dismissed.set()
        self._arrived.put(None)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda agent: agent.channel.close(GRACE_S), [*self.all, *self._removed]))
        for helper in self._helpers:
            helper.join(GRACE_S)

    # -- messages ------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Read what arrives from all agents, and find those that are stuck."""
        ticked_at = 0.0
        while not self._dismissed.is_set():
            agents: Iterable[HostAgent | None] = ()
            with suppress(queue.Empty):
                agents = [self._arrived.get(timeout=_LOOK_S if self._silent else _TICK_S)]
            if self._silent and self._arrived.empty():
                with self._reading:
                    agents = [*agents, *self._silent]
            for agent in agents:
                if agent is not None and agent in self._heard:
                    self._read(agent)
            if time.monotonic() - ticked_at >= _TICK_S:
                ticked_at = time.monotonic()
                self._find_stuck()

    def _stop_reading(self, agent: HostAgent) -> None:
        with self._reading:
            self._heard.discard(agent)
            self._silent.discard(agent)
            self._reading.notify_all()

    def _read(self, agent: HostAgent) -> None:
        """Take the messages that have arrived."""
        try:
            for _ in range(_AT_A_TIME):
                if (message := agent.channel.receive(0.0)) is None:
                    break
                agent.received_at = time.monotonic()
                _log.debug("%s: received %s", agent.name, message["type"])
                self._take(agent, message)
                if message["type"] == "end" and self._closing:
                    break
            else:
                self._arrived.put(agent)  # behind the others, who have their turn
                return
            agent.gone = agent.channel.error_output().strip() or "no reason given"
        except TimeoutError:
            return
        except HostLost as error:
            if not self._closing and agent.state is not None:
                self._stop_reading(agent)
                self._help(f"reach {agent.name}", partial(self._reconnect, agent, str(error)))
                return
            agent.gone = str(error)
        except InvalidReply as error:
            agent.gone = str(error)
            self._messages.put((agent, {"type": "fault", "kind": "agent", "rank": None, "sentence": agent.gone}))
        except (HostError, OSError, ValueError) as error:
            agent.gone = str(error)
        except Exception as error:  # an unforeseen error must not end the thread that reads all agents
            _log.exception("%s", agent.name)
            agent.gone = f"{type(error).__name__}: {error}"
        self._end(agent)

    def _end(self, agent: HostAgent) -> None:
        self._messages.put((agent, {"type": "gone", "why": agent.gone}))
        agent.stream_ended = True
        self._stop_reading(agent)

    def _find_stuck(self) -> None:
        """Give up agents that watch ranks and are silent; their connections work."""
        now = time.monotonic()
        for agent in list(self.all):
            watches = agent.is_started and not (agent.done or agent.lost or agent.gone)
            if watches and now - agent.received_at > silence.AGENT_S:
                agent.gone = f"no message from its agent for {silence.AGENT_S:g} s"
                self._end(agent)

    def _take(self, agent: HostAgent, message: Message) -> None:
        if message["type"] in _ANSWERS:
            if agent.answers.qsize() >= _MOST_ANSWERS:
                raise InvalidReply(agent.name, f"{message['type']} without an order; expected answers to orders only")
            agent.answers.put(message)
            return
        if message["type"] == "over" and not agent.is_started:
            raise InvalidReply(agent.name, "over before the order to start; expected it after the order")
        seq = int(message.get("seq", 0))
        if seq and seq <= agent.seq:
            return  # already received
        agent.seq = max(agent.seq, seq)
        self._messages.put((agent, message))
        if message["type"] == "over":
            agent.state = agent.started.end()

    def _reconnect(self, agent: HostAgent, why: str) -> None:
        """Reach a lost host's agent again; give up when its lease is over."""
        agent.lost = why
        agent.losses += 1
        self._report(agent, "lost", f"{agent.name} is lost ({why}); its ranks continue for {agent.lease_s:g} s")
        lease_ends = time.monotonic() + agent.lease_s
        while not self._closing and not agent.given_up and time.monotonic() < self._give_up_time(lease_ends):
            try:
                agent.host.reconnect()
            except HostGone as error:
                why = str(error)
                break
            except HostError as error:
                why = str(error)
                time.sleep(_RECONNECT_S)
                continue
            try:
                agent.channel, started = connect_to_agent(agent.host, agent.greeted.log_dir, agent.seq)
                if agent.is_started and not started:
                    raise HostError("the order to start the ranks was lost")
                agent.lost = None
            except HostLost as error:
                why = str(error)
                continue
            except HostError as error:
                why, agent.lost = f"{agent.lost}; after the host came back: {error}", None
                self._read_left(agent)
                break
            self._report(agent, "back", f"{agent.name} is back")
            self._resend_stop(agent)
            self._listen(agent)
            return
        agent.gone = f"{why}; {agent.given_up}" if agent.given_up else why
        self._end(agent)

    def _read_left(self, agent: HostAgent) -> None:
        """Take the messages that an agent left in its file before its end."""
        with suppress(HostError):
            words = ["tail", "-n", f"+{agent.seq + 1}", f"{agent.greeted.log_dir}/{EVENTS}"]
            for line in agent.host.run(words, timeout_s=silence.ANSWER_S).raw.splitlines():
                if (message := parse_line(agent.name, line)) is not None:
                    check_reply(agent.name, message)
                    self._take(agent, message)

    def give_up(self, reason: str) -> None:
        """Stop waiting for the hosts that are lost at the moment."""
        for agent in self.all:
            if agent.lost and not agent.gone:
                agent.given_up = reason

    def _give_up_time(self, lease_ends: float) -> float:
        """Return how long to wait for a lost host: until its lease ends, or shortly after the round was stopped."""
        return lease_ends if self._stopped_at is None else min(lease_ends, self._stopped_at + _AFTER_A_FAULT_S)

    def _resend_stop(self, agent: HostAgent) -> None:
        """Send again the stop or leave order that was sent while the link was cut."""
        if self._closing or agent.removed:
            _leave(agent, remove=agent.removed)
        elif self._stop_reason is not None:
            with suppress(HostError):
                agent.send({"op": "stop", "reason": self._stop_reason})

    def _report(self, agent: HostAgent, kind: str, sentence: str) -> None:
        agent.warnings.append(sentence)
        if self.is_noted:
            note("line", text=sentence)
        self._messages.put((agent, {"type": kind, "sentence": sentence}))


def attach_agent(host: Host, directory: Path, placed: StoredHost, lease_s: float) -> HostAgent:
    """Return the agent of a round that another controller planned, and may have started, from its plan.json."""
    channel, started = connect_to_agent(host, placed.log_dir, 0)
    kind = Started if started else Leased
    state = kind(placed.log_dir, placed.code_root, (), 0, placed.clock_offset_s, placed.devices)
    return HostAgent(host, placed.noderank, directory, channel, lease_s, state=state)


def _leave(agent: HostAgent, *, remove: bool) -> None:
    with suppress(HostError):
        agent.send({"op": "leave", "remove": remove})


def connect_to_agent(host: Host, log_dir: str, after: int) -> tuple[Channel, bool]:
    """Return a connection to a running agent, which repeats messages after a number, and whether its ranks started."""
    channel = attach(host, log_dir)
    try:
        with suppress(HostError):  # it has ended meanwhile, or its host is lost: the next line says which
            channel.send({"op": "attach", "after": after})
        first = channel.receive(silence.ANSWER_S)
        if first is None or first["type"] != "attached":
            raise HostError(f"{host.name}: the agent has ended: it answered {first}")
    except TimeoutError as error:
        channel.close(0.0)
        raise HostLost(f"{host.name}: its agent does not answer") from error
    except HostError:
        channel.close(0.0)
        raise
    return channel, first["started"]


# -- hosts and devices: all of them or none, so that no round holds some while it waits -----------------------------


@dataclass(frozen=True)
class DeviceRequest:
    """The hosts and devices that a round requests."""

    nnodes: int
    nproc: int
    devices_per_host: int | None  # None: the number of cores, and at least nproc
    whole_host: bool
    owner: Mapping[str, Any]
    name: str  # name of the round, unique among all runs on a host
    directory: Path
    lease_s: float  # how long ranks on other hosts continue without the controller
    lease_here_s: float = 0.0
    unfit: Mapping[str, Collection[int]] = field(default_factory=dict)  # by host: devices that no rank may use
    allowed: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by host: the only devices to choose from
    timeout_s: float = 24 * 3600.0

    def lease(self, agent: HostAgent) -> Message:
        """Return the order to lease devices on an agent's host."""
        count = self.devices_per_host or max(self.nproc, len(agent.greeted.cpus))
        devices = self.allowed.get(agent.name, range(count))
        return {
            "op": "lease",
            "count": self.nproc,
            "candidates": [device for device in devices if device not in self.unfit.get(agent.name, ())],
            "whole_host": self.whole_host,
            "owner": dict(self.owner),
            "directory": None,
        }

    def hello(self, agent: HostAgent) -> Message:
        """Return the first order for an agent."""
        return {
            "op": "hello",
            "log_dir": str(agent.folder) if agent.host.is_local else None,
            "name": f"{self.name}-{agent.name}",
            "lease_s": agent.lease_s,
        }


@dataclass(frozen=True)
class Acquisition:
    """The search for free hosts and devices: it adds agents that hold what a round requests."""

    pool: HostPool
    code: Code
    request: DeviceRequest
    agents: Agents
    again: bool = False
    """Whether this run has reserved the hosts for another start, so that it waits for no other run's turn."""

    def run(self) -> float:
        """Acquire the devices; runs of this machine queue for the same hosts. Return the seconds of the wait."""
        deadline = time.monotonic() + self.request.timeout_s
        waits_since: list[float] = []

        def wait(holders: str) -> None:
            waits_since.append(time.monotonic())
            note("phase", text=f"{self.request.owner['case']} waits: {holders}", lasting=True)

        with nullcontext() if self.again else _queue(self.pool, deadline, wait):
            report_at, reported = time.monotonic(), ""
            while busy := self._attempt():
                now = time.monotonic()
                if now >= deadline:
                    raise device_lease.LeaseError("no devices became free in time: " + "; ".join(busy))
                if now >= report_at and (holders := "; ".join(busy)) != reported:
                    wait(holders)
                    report_at, reported = now + _REPORT_EVERY_S, holders
                # Other controllers may try the same hosts in another order: retry at random times.
                time.sleep(_POLL_S * random.uniform(0.5, 1.5))
        waited_s = time.monotonic() - waits_since[0] if waits_since else 0.0
        for agent in [agent for agent in self.agents.all if not isinstance(agent.state, Leased)]:
            self.agents.remove(agent)
        for noderank, agent in enumerate(self.agents.all):
            agent.noderank = noderank
        return waited_s

    def _attempt(self) -> list[str]:
        """Try all hosts once. Return the holders of busy devices, or an empty list if enough devices are held."""
        nnodes = self.request.nnodes
        self.pool.take(nnodes)  # raises HostError if too few are left
        untried, busy = list(self.pool.usable), list[str]()
        while untried and (missing := nnodes - len(self._holding())):
            chosen, untried = untried[:missing], untried[missing:]
            agents = self._agents_on(chosen)
            with nullcontext(chosen) if self.again else _unreserved(chosen) as free:
                busy += self.lease_all([agent for agent in agents if agent.host in free])
            busy += ["a training of another run starts again"] if len(free) < len(chosen) else []
        if len(self._holding()) == nnodes:
            return []
        for agent, _ in self._ask_all(self._holding(), lambda agent: agent.ask({"op": "release"}, "released")):
            agent.state = agent.leased.release()
        if not busy:
            self.pool.take(nnodes)  # a host may have been lost meanwhile
        return busy or ["other runs were faster"]

    def _holding(self) -> list[HostAgent]:
        return [agent for agent in self.agents.all if isinstance(agent.state, Leased)]

    def _agents_on(self, chosen: Sequence[Host]) -> list[HostAgent]:
        """Return an agent on each host, started at once; a host where no agent starts is left out from now on."""
        running = {agent.host.name for agent in self.agents.all}
        new = [host for host in chosen if host.name not in running]
        for host, opened in run_on_each(new, self._open).items():
            if isinstance(opened, HostError):
                if host.is_local:
                    raise opened
                self.pool.exclude(host, str(opened))
        order = {host.name: number for number, host in enumerate(self.pool.hosts)}
        self.agents.all.sort(key=lambda agent: order[agent.host.name])
        names = {host.name for host in chosen}
        return [agent for agent in self.agents.all if agent.host.name in names]

    def _open(self, host: Host) -> HostAgent:
        noderank, directory = self.pool.hosts.index(host), self.request.directory.absolute()
        lease_s = self.request.lease_here_s if host.is_local else self.request.lease_s
        agent = HostAgent(host, noderank, directory, self._open_channel(host), lease_s, self.code)
        self.agents.join(agent)
        try:
            hello = agent.ask(self.request.hello(agent), "hello")
            offset_s = 0.0 if host.is_local else clock_offset(agent.ask)[0]
            agent.state = Greeted(hello["log_dir"], hello["code_root"], tuple(hello["cpus"]), hello["port"], offset_s)
        except HostError:
            self.agents.remove(agent)
            raise
        return agent

    def _open_channel(self, host: Host) -> Channel:
        """Start the agent; reconnect once, since the connection may have ended while it was idle."""
        try:
            return open_module(host, self.code, MODULE)
        except HostLost:
            host.reconnect()
            return open_module(host, self.code, MODULE)

    def lease_all(self, targets: Sequence[HostAgent]) -> list[str]:
        """Try to lease devices on all agents at once. Return the holders where the devices are busy."""
        busy: list[str] = []
        for agent, answer in self._ask_all(targets, self._ask_for_devices):
            if answer["type"] == "leased":
                agent.state = agent.greeted.lease(answer["devices"])
            busy += [line if agent.host.is_local else f"{agent.name}: {line}" for line in answer.get("holders", ())]
        return busy

    def _ask_for_devices(self, agent: HostAgent) -> Message:
        """Try to lease devices: as many as the round requests, or none."""
        answer = agent.ask(self.request.lease(agent), "leased", "busy")
        if answer["type"] == "leased" and (count := len(set(answer["devices"]))) != self.request.nproc:
            raise InvalidReply(agent.name, f"leased.devices has {count} devices; expected {self.request.nproc}")
        return answer

    def _ask_all(
        self, targets: Sequence[HostAgent], ask: Callable[[HostAgent], Message]
    ) -> list[tuple[HostAgent, Message]]:
        """Return the answer of each agent; a host that was lost while the case waited is left out from now on."""
        by_host = {agent.host: agent for agent in targets}
        answers = []
        for host, answer in run_on_each(by_host, lambda host: ask(by_host[host])).items():
            if isinstance(answer, (HostLost, InvalidReply)) and not host.is_local:
                self.pool.exclude(host, str(answer))
                self.agents.remove(by_host[host])
            elif isinstance(answer, HostError):
                raise answer
            else:
                answers.append((by_host[host], answer))
        return answers


@contextmanager
def _lock_file(kind: str, addresses: Iterable[str]) -> Iterator[int]:
    """Open the file of a lock that the runs of this machine share for these hosts; the end of the block unlocks it."""
    key = hashlib.sha256("\n".join(sorted(addresses)).encode()).hexdigest()[:12]
    handle = device_lease.open_lock(device_lease.default_directory(), f"{kind}-{key}")
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def reserved(pool: HostPool) -> Iterator[None]:
    """Keep the other runs of this machine from leasing devices of these hosts, from one start to the next one."""
    with ExitStack() as locks:
        for host in pool.hosts:
            handle = locks.enter_context(_lock_file("again", [host.address]))
            fcntl.flock(handle, fcntl.LOCK_SH)  # others hold it for a moment only
        yield


@contextmanager
def _unreserved(hosts: Iterable[Host]) -> Iterator[list[Host]]:
    """Return those of the hosts that no other run has reserved; none reserves them within the block."""
    with ExitStack() as locks:
        free = set()
        for address in {host.address for host in hosts}:  # hosts that differ in their port share a lock
            handle = locks.enter_context(_lock_file("again", [address]))
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.add(address)
        yield [host for host in hosts if host.address in free]


@contextmanager
def _queue(pool: HostPool, deadline: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Wait in a queue of this machine's runs for these hosts, so that a case with many hosts is not starved."""
    with _lock_file("queue", [host.address for host in pool.hosts]) as handle:
        reported = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise device_lease.LeaseError(
                        "no devices became free in time: other runs wait in front of this run"
                    ) from None
            if not reported:
                holders = device_lease.holders(device_lease.default_directory())
                on_wait("; ".join(holders) or "other runs wait in front of this run")
                reported = True
            time.sleep(_POLL_S)
        yield
