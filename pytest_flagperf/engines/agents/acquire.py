"""Acquire free hosts and devices for a round: all of them or none, so that no round holds some while it waits."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flagperf_driver.node import device_lease
from pytest_flagperf.hosts import Channel, Host, HostError, HostLost, InvalidReply, Message, silence
from pytest_flagperf.hosts.deploy import Code, open_module
from pytest_flagperf.hosts.host_pool import HostPool, run_on_each

from .agents import Agents, HostAgent

with suppress(ImportError):  # Windows imports this module for its names, but runs no rounds
    import fcntl

MODULE = "flagperf_driver.node.agent.main"
_PINGS = 3
_POLL_S = 0.25
_REPORT_EVERY_S = 10.0
"""The shortest time between two lines about changed holders."""

OnWait = Callable[[str], None]


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


def acquire(
    pool: HostPool, code: Code, request: DeviceRequest, agents: Agents, on_wait: OnWait = lambda _: None
) -> float:
    """Add agents that hold the requested devices; runs of this machine queue for the same hosts.

    Return how many seconds the round waited for other runs.
    """
    deadline = time.monotonic() + request.timeout_s
    waits_since: list[float] = []

    def wait(holders: str) -> None:
        waits_since.append(time.monotonic())
        on_wait(holders)

    with _queue(pool, deadline, wait):
        report_at, reported = time.monotonic(), ""
        while busy := _attempt(pool, code, request, agents):
            now = time.monotonic()
            if now >= deadline:
                raise device_lease.LeaseError("no devices became free in time: " + "; ".join(busy))
            if now >= report_at and (holders := "; ".join(busy)) != reported:
                wait(holders)
                report_at, reported = now + _REPORT_EVERY_S, holders
            # Other controllers may try the same hosts in another order: retry at random times.
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))
    waited_s = time.monotonic() - waits_since[0] if waits_since else 0.0
    for agent in [agent for agent in agents.all if not agent.devices]:
        agents.remove(agent)
    for noderank, agent in enumerate(agents.all):
        agent.noderank = noderank
    return waited_s


def _attempt(pool: HostPool, code: Code, request: DeviceRequest, agents: Agents) -> list[str]:
    """Try all hosts once. Return the holders of busy devices, or an empty list if enough devices are held."""
    pool.take(request.nnodes)  # raises HostError if too few are left
    untried, busy = list(pool.usable), list[str]()
    while untried and (missing := request.nnodes - sum(bool(agent.devices) for agent in agents.all)):
        chosen, untried = untried[:missing], untried[missing:]
        busy += _lease_all(pool, _agents_on(pool, chosen, code, request, agents), request, agents)
    holding = [agent for agent in agents.all if agent.devices]
    if len(holding) == request.nnodes:
        return []
    _ask_all(pool, holding, lambda agent: agent.ask({"op": "release"}, "released"), agents)
    for agent in holding:
        agent.devices = ()
    return busy or ["other runs were faster"]


def _agents_on(
    pool: HostPool, chosen: Sequence[Host], code: Code, request: DeviceRequest, agents: Agents
) -> list[HostAgent]:
    """Return an agent on each host, started at once; a host where no agent starts is left out from now on."""
    running = {agent.host.name for agent in agents.all}
    new = [host for host in chosen if host.name not in running]
    for host, opened in run_on_each(new, lambda host: _open(pool, host, code, request, agents)).items():
        if isinstance(opened, HostError):
            if host.is_local:
                raise opened
            pool.exclude(host, str(opened))
    order = {host.name: number for number, host in enumerate(pool.hosts)}
    agents.all.sort(key=lambda agent: order[agent.host.name])
    names = {host.name for host in chosen}
    return [agent for agent in agents.all if agent.host.name in names]


def _open(pool: HostPool, host: Host, code: Code, request: DeviceRequest, agents: Agents) -> HostAgent:
    noderank = pool.hosts.index(host)
    lease_s = request.lease_here_s if host.is_local else request.lease_s
    agent = HostAgent(host, noderank, request.directory.absolute(), _open_agent_module(host, code), lease_s, code)
    agents.join(agent)
    try:
        hello = agent.ask(_hello(agent, request), "hello")
        agent.log_dir, agent.code_root = hello["log_dir"], hello["code_root"]
        agent.cpus, agent.port = tuple(hello["cpus"]), hello["port"]
        agent.clock_offset_s = 0.0 if host.is_local else clock_offset(agent)
    except HostError:
        agents.remove(agent)
        raise
    return agent


def _open_agent_module(host: Host, code: Code) -> Channel:
    """Open the agent's module; reconnect once, since the connection may have ended while it was idle."""
    try:
        return open_module(host, code, MODULE)
    except HostLost:
        host.reconnect()
        return open_module(host, code, MODULE)


def _hello(agent: HostAgent, request: DeviceRequest) -> dict[str, Any]:
    local = agent.host.is_local
    return {
        "op": "hello",
        "log_dir": str(agent.folder) if local else None,
        "name": f"{request.name}-{agent.name}",
        "lease_s": agent.lease_s,
        "silence_s": None if local else silence.CONTROLLER_S,
    }


def clock_offset(agent: HostAgent) -> float:
    """Return the host's clock minus ours in seconds, from the fastest of several pings."""

    def ping() -> tuple[float, float]:
        before = time.time()
        remote = float(agent.ask({"op": "ping", "t": before}, "pong")["clock_ms"]) / 1000
        after = time.time()
        return after - before, remote - (before + after) / 2

    return min(ping() for _ in range(_PINGS))[1]


def _lease_all(pool: HostPool, targets: Sequence[HostAgent], request: DeviceRequest, agents: Agents) -> list[str]:
    """Try to lease devices on all agents at once. Return the holders where the devices are busy."""
    busy: list[str] = []
    for agent, answer in _ask_all(pool, targets, lambda agent: _ask_for_devices(agent, request), agents):
        agent.devices = tuple(answer.get("devices", ()))
        busy += [line if agent.host.is_local else f"{agent.name}: {line}" for line in answer.get("holders", ())]
    return busy


def _ask_for_devices(agent: HostAgent, request: DeviceRequest) -> Message:
    """Try to lease devices: as many as the round requests, or none."""
    answer = agent.ask(_lease_request(agent, request), "leased", "busy")
    if answer["type"] == "leased" and len(set(answer["devices"])) != request.nproc:
        count = len(set(answer["devices"]))
        raise InvalidReply(agent.name, f"leased.devices has {count} devices; expected {request.nproc}")
    return answer


def _ask_all(
    pool: HostPool,
    targets: Sequence[HostAgent],
    ask: Callable[[HostAgent], Message],
    agents: Agents,
) -> list[tuple[HostAgent, Message]]:
    """Return the answer of each agent; a host that was lost while the case waited is left out from now on."""
    by_host = {agent.host: agent for agent in targets}
    answers = []
    for host, answer in run_on_each(by_host, lambda host: ask(by_host[host])).items():
        if isinstance(answer, (HostLost, InvalidReply)) and not host.is_local:
            pool.exclude(host, str(answer))
            agents.remove(by_host[host])
        elif isinstance(answer, HostError):
            raise answer
        else:
            answers.append((by_host[host], answer))
    return answers


def _lease_request(agent: HostAgent, request: DeviceRequest) -> dict[str, Any]:
    count = request.devices_per_host or max(request.nproc, len(agent.cpus))
    devices = request.allowed.get(agent.name, range(count))
    return {
        "op": "lease",
        "count": request.nproc,
        "candidates": [device for device in devices if device not in request.unfit.get(agent.name, ())],
        "whole_host": request.whole_host,
        "owner": dict(request.owner),
        "directory": None,
    }


@contextmanager
def _queue(pool: HostPool, deadline: float, on_wait: OnWait) -> Iterator[None]:
    """Wait in a queue of this machine's runs for these hosts, so that a case with many hosts is not starved."""
    key = hashlib.sha256("\n".join(sorted(host.address for host in pool.hosts)).encode()).hexdigest()[:12]
    folder = device_lease.default_directory()
    handle = device_lease.open_lock(folder, f"queue-{key}")
    try:
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
                on_wait("; ".join(device_lease.holders(folder)) or "other runs wait in front of this run")
                reported = True
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)
