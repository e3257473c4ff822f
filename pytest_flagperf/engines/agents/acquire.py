"""Hosts and devices for a round: any that are free, all or none, so that nobody waits while holding some."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.node import lease
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost, InvalidReply, Message
from pytest_flagperf.hosts.deploy import Code, open_module
from pytest_flagperf.hosts.fleet import Fleet, each

from .agents import Agent, Agents

MODULE = "flagperf_driver.node.agent.main"
_PINGS = 3
_POLL_S = 0.25
_REPORT_EVERY_S = 10.0
# An agent elsewhere that hears nothing for so long has lost its controller; one here sees its pipe close.
_SILENCE_S = 10.0

OnWait = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """The hosts and devices that a round asks for."""

    nnodes: int
    nproc: int
    devices_per_host: int | None  # None: as many as there are cores, and at least nproc
    whole_host: bool
    owner: Mapping[str, Any]
    name: str  # of the round, among all of all runs on a host
    directory: Path
    lease_s: float  # how long ranks go on without us on hosts that can be lost
    lease_here_s: float = 0.0
    unfit: Mapping[str, Collection[int]] = field(default_factory=dict)  # by host, devices that none should get
    timeout_s: float = 24 * 3600.0


def acquire(fleet: Fleet, code: Code, request: Request, agents: Agents, on_wait: OnWait = lambda _: None) -> None:
    """Add agents that hold devices; those of one controller stand in line for the same hosts."""
    deadline = time.monotonic() + request.timeout_s
    with _line(fleet, deadline, on_wait):
        report_at = time.monotonic()
        while busy := _attempt(fleet, code, request, agents):
            now = time.monotonic()
            if now >= deadline:
                raise lease.LeaseError("no devices in time: " + "; ".join(busy))
            if now >= report_at:
                on_wait("; ".join(busy))
                report_at = now + _REPORT_EVERY_S
            # Others may want the same hosts in another order: not all are to try again at the same time.
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))
    for agent in [agent for agent in agents.all if not agent.devices]:
        agents.part_with(agent)
    for noderank, agent in enumerate(agents.all):
        agent.noderank = noderank


def _attempt(fleet: Fleet, code: Code, request: Request, agents: Agents) -> list[str]:
    """One try over all hosts; who is in the way, or nothing when enough hold devices."""
    fleet.take(request.nnodes)  # or the reason why there are too few
    left, busy = list(fleet.usable), list[str]()
    while left and (missing := request.nnodes - sum(bool(agent.devices) for agent in agents.all)):
        chosen, left = left[:missing], left[missing:]
        busy += _lease_all(fleet, _agents_on(fleet, chosen, code, request, agents), request, agents)
    holding = [agent for agent in agents.all if agent.devices]
    if len(holding) == request.nnodes:
        return []
    _ask_all(fleet, holding, lambda agent: agent.ask({"op": "release"}, "released"), agents)
    for agent in holding:
        agent.devices = ()
    return busy or ["others were faster"]


def _agents_on(fleet: Fleet, chosen: Sequence[Host], code: Code, request: Request, agents: Agents) -> list[Agent]:
    """An agent on each, all at once; a host where there can be none is left out from now on."""
    there = {agent.host.name for agent in agents.all}
    new = [host for host in chosen if host.name not in there]
    for host, opened in each(new, lambda host: _open(fleet, host, code, request, agents)).items():
        if isinstance(opened, HostError):
            if host.here:
                raise opened
            fleet.lost(host, str(opened))
    order = {host.name: number for number, host in enumerate(fleet.hosts)}
    agents.all.sort(key=lambda agent: order[agent.host.name])
    names = {host.name for host in chosen}
    return [agent for agent in agents.all if agent.host.name in names]


def _open(fleet: Fleet, host: Host, code: Code, request: Request, agents: Agents) -> Agent:
    noderank = fleet.hosts.index(host)
    lease_s = request.lease_here_s if host.here else request.lease_s
    agent = Agent(host, noderank, request.directory.absolute(), _opened(host, code), lease_s, code)
    agents.join(agent)
    try:
        hello = agent.ask(_hello(agent, request), "hello")
        agent.log_dir, agent.code_root = hello["log_dir"], hello["code_root"]
        agent.cpus, agent.port = tuple(hello["cpus"]), hello["port"]
        agent.clock_offset_s = 0.0 if host.here else clock_offset(agent)
    except HostError:
        agents.part_with(agent)
        raise
    return agent


def _opened(host: Host, code: Code) -> Channel:
    """A connection that ended while nobody used it is no fault."""
    try:
        return open_module(host, code, MODULE)
    except HostLost:
        host.reconnect()
        return open_module(host, code, MODULE)


def _hello(agent: Agent, request: Request) -> dict[str, Any]:
    here = agent.host.here
    return {
        "op": "hello",
        "log_dir": str(agent.folder) if here else None,
        "name": f"{request.name}-{agent.name}",
        "lease_s": agent.lease_s,
        "silence_s": None if here else _SILENCE_S,
    }


def clock_offset(agent: Agent) -> float:
    """The host's clock minus ours, from the quickest of some pings."""

    def ping() -> tuple[float, float]:
        before = time.time()
        theirs = float(agent.ask({"op": "ping", "t": before}, "pong")["clock_ms"]) / 1000
        after = time.time()
        return after - before, theirs - (before + after) / 2

    return min(ping() for _ in range(_PINGS))[1]


def _lease_all(fleet: Fleet, asked: Sequence[Agent], request: Request, agents: Agents) -> list[str]:
    """One attempt on each at the same time; who is in the way where it did not come off."""
    busy: list[str] = []
    for agent, answer in _ask_all(fleet, asked, lambda agent: _ask_for_devices(agent, request), agents):
        agent.devices = tuple(answer.get("devices", ()))
        busy += [line if agent.host.here else f"{agent.name}: {line}" for line in answer.get("holders", ())]
    return busy


def _ask_for_devices(agent: Agent, request: Request) -> Message:
    """One attempt to lease devices: as many as the round asks for, or none."""
    answer = agent.ask(_lease_request(agent, request), "leased", "busy")
    if answer["type"] == "leased" and len(set(answer["devices"])) != request.nproc:
        count = len(set(answer["devices"]))
        raise InvalidReply(agent.name, f"leased.devices has {count} devices; expected {request.nproc}")
    return answer


def _ask_all(
    fleet: Fleet,
    asked: Sequence[Agent],
    ask: Callable[[Agent], Message],
    agents: Agents,
) -> list[tuple[Agent, Message]]:
    """What each answers; a host that is lost while a case waits, for hours maybe, is left out from now on."""
    on = {agent.host: agent for agent in asked}
    said = []
    for host, answer in each(on, lambda host: ask(on[host])).items():
        if isinstance(answer, (HostLost, InvalidReply)) and not host.here:
            fleet.lost(host, str(answer))
            agents.part_with(on[host])
        elif isinstance(answer, HostError):
            raise answer
        else:
            said.append((on[host], answer))
    return said


def _lease_request(agent: Agent, request: Request) -> dict[str, Any]:
    count = request.devices_per_host or max(request.nproc, len(agent.cpus))
    return {
        "op": "lease",
        "wanted": request.nproc,
        "candidates": [device for device in range(count) if device not in request.unfit.get(agent.name, ())],
        "whole_host": request.whole_host,
        "owner": dict(request.owner),
        "directory": None,
    }


@contextmanager
def _line(fleet: Fleet, deadline: float, on_wait: OnWait) -> Iterator[None]:
    """Who wants these hosts from this machine stands in line: a case that wants many is not passed for ever."""
    key = hashlib.sha256("\n".join(sorted(host.address for host in fleet.hosts)).encode()).hexdigest()[:12]
    folder = lease.default_directory()
    handle = lease.open_lock(folder, f"line-{key}")
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise lease.LeaseError("no devices in time: others stand in line before us") from None
            if not told:
                on_wait("; ".join(lease.holders(folder)) or "others stand in line before us")
                told = True
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)
