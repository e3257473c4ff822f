"""The orders for each host of a round, and the files that record them before the round starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flagperf_driver.node.deployed_code import module_argv
from flagperf_driver.node.sampling import topology
from flagperf_driver.rank_process import RankProcess, threads_per_rank
from pytest_flagperf.plan import PlacedHost, Placement, Plan, rank_processes
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.stored.layout import CASE, task_log
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault

from .acquire import MODULE
from .agents import GRACE_S, HostAgent

Explain = Callable[[RoundFault], RoundFault]


def unchanged(fault: RoundFault) -> RoundFault:
    """Return the fault: this machine and hosts over SSH end no round."""
    return fault


@dataclass(frozen=True)
class RoundOptions:
    """Options of a round besides the plan."""

    monitors: Mapping[str, Any] | None = None  # the sampler's orders without the devices
    clear_caches: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # labels of the round's containers
    show: bool = False  # the agents send every line of the ranks' logs
    plan_entries: Mapping[str, Any] = field(default_factory=dict)  # additional entries of plan.json
    explain: Explain = unchanged  # adds why the hosts ended a failed round
    hidden: Sequence[str] = ()  # folders that ranks may not read: earlier rounds and runs
    bind: bool = True  # bind ranks to the cores near their devices, if known
    near: Mapping[str, Mapping[int, Sequence[int]]] = field(
        default_factory=dict
    )  # by host and device: the cores near it


NO_OPTIONS = RoundOptions()


def make_orders(
    plan: Plan,
    identity: Mapping[str, str],
    round_number: int,
    agents: Sequence[HostAgent],
    interpreters: Mapping[str, Interpreter],
    options: RoundOptions,
) -> list[dict[str, Any]]:
    """Return the order for each host's agent; ``identity``: the token of the round and the name of its training."""
    # All at once: each host creates its own container.
    with ThreadPoolExecutor(max(1, len(agents))) as pool:
        created = pool.map(lambda agent: _container(agent, interpreters[agent.name], plan, options), agents)
        containers = {agent.name: container for agent, container in zip(agents, created, strict=True)}
    placement = _placement(plan, agents, interpreters, options, only_leased=_only_leased(containers.values()))

    def order(agent: HostAgent, processes: Sequence[RankProcess]) -> dict[str, Any]:
        case = _case(plan, identity, round_number, agent)
        return {
            "op": "start",
            "log": task_log(plan.case.framework_name),
            "files": {CASE: json.dumps(case, indent=1) + "\n"},
            "ranks": [process.to_json() for process in processes],
            "container": containers[agent.name],
            "monitors": _monitors(plan, options, agent, containers[agent.name]),
            "clear_caches": options.clear_caches,
            "show": options.show,
            "vendor_code": any(addition.runs_code for addition in plan.additions),
            "writable": [folder] if (folder := plan.config.get("checkpoint_dir")) else [],
            "hidden": list(options.hidden),
            **_deadlines(plan.config),
        }

    return [*map(order, agents, rank_processes(plan, placement))]


def _case(plan: Plan, identity: Mapping[str, str], round_number: int, agent: HostAgent) -> dict[str, Any]:
    """Return the case.json of a host's ranks."""
    return {**plan.case_json(round_number, agent.code_root), **identity}


def _container(
    agent: HostAgent, interpreter: Interpreter, plan: Plan, options: RoundOptions
) -> Mapping[str, Any] | None:
    """Create, but do not start, the container of this round's ranks; its main process is a second agent."""
    if interpreter.container is None:
        return None
    return interpreter.container.create(
        agent.host,
        argv=[*module_argv(interpreter.python, agent.code_root, MODULE), "--inner", agent.log_dir],
        log_dir=agent.log_dir,
        read_only=[agent.code_root, *([plan.data_dir] if plan.data_dir else [])],
        devices=agent.devices,
        labels=options.labels,
    )


def _placement(
    plan: Plan,
    agents: Sequence[HostAgent],
    interpreters: Mapping[str, Interpreter],
    options: RoundOptions,
    *,
    only_leased: bool = False,
) -> Placement:
    """Return the placement of the plan on the hosts that the agents hold."""
    hosts = tuple(
        PlacedHost(
            agent.name,
            agent.host.address,
            agent.devices,
            python=interpreters[agent.name].python,
            code_root=agent.code_root,
            log_dir=agent.log_dir,
            cpus=_cores(plan, agent, options),
            env=interpreters[agent.name].env,
        )
        for agent in agents
    )
    threads = (
        threads_per_rank(len(agent.cpus), plan.case.nproc, host.cpus) for agent, host in zip(agents, hosts, strict=True)
    )
    return Placement(hosts, agents[0].port, 1 if plan.devices_are_cores else min(threads), only_leased)


def _only_leased(containers: Collection[Mapping[str, Any] | None]) -> bool:
    """Return True if ranks see only the devices of their round, on all hosts."""
    return all(container and container["only_leased"] for container in containers)


def _monitors(
    plan: Plan, options: RoundOptions, agent: HostAgent, container: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the sampler's orders; cores are not devices for it."""
    if options.monitors is None:
        return None
    probe = options.monitors.get("probe")
    devices = list(agent.devices) if probe or options.monitors.get("nvml") else []
    own: dict[str, Any] = {"probe": {"module": f"{agent.code_root}/{probe}"}} if probe else {}
    own |= {"processors_first": True} if plan.devices_are_cores else {}
    inside = {"container": container["id"]} if container and "id" in container else {}
    return {**options.monitors, **own, **inside, "folder": agent.log_dir, "devices": devices}


def _cores(plan: Plan, agent: HostAgent, options: RoundOptions) -> tuple[tuple[int, ...], ...]:
    """Return the cores that each rank is bound to: its leased core on CPUs, else the cores near its device."""
    if not options.bind:
        return ()
    if plan.devices_are_cores:
        enough = all(device < len(agent.cpus) for device in agent.devices)
        return tuple((agent.cpus[device],) for device in agent.devices) if enough else ()
    near, usable = options.near.get(agent.name, {}), set(agent.cpus)
    cores = tuple(tuple(sorted(usable.intersection(near.get(device, ())))) for device in agent.devices)
    return cores if any(cores) else ()


def _deadlines(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("init_timeout_s", "hang_timeout_s", "round_timeout_s")
    return {**{name: config.get(name) for name in names}, "grace_s": GRACE_S}


def write_inputs(
    plan: Plan,
    identity: Mapping[str, str],
    round_number: int,
    directory: RoundDir,
    agents: Sequence[HostAgent],
    orders: Sequence[Mapping[str, Any]],
    interpreters: Mapping[str, Interpreter],
    options: RoundOptions = NO_OPTIONS,
) -> None:
    """Write plan.json and case.json, for reports and for a controller that resumes the round.

    They contain no environment variables, which may be secret.
    """
    first = interpreters[agents[0].name]
    facts = {
        "round": round_number,
        "seed": plan.seed(round_number),
        "hosts": [_placed(agent, interpreters[agent.name], order) for agent, order in zip(agents, orders, strict=True)],
        "python": first.python,
        "interpreter": {"label": first.label, **first.details},
        "code_root": agents[0].code_root,
        # The requested samples: a report shows which of them are missing.
        "monitors": dict(options.monitors) if options.monitors else None,
        "bind": options.bind,
        **options.plan_entries,
        "argv": {
            agent.name: [rank["argv"] for rank in order["ranks"]] for agent, order in zip(agents, orders, strict=True)
        },
    }
    directory.write_inputs({**plan.to_json(), **identity, **facts}, _case(plan, identity, round_number, agents[0]))


def _placed(agent: HostAgent, interpreter: Interpreter, order: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": agent.name,
        "address": agent.host.address,
        "noderank": agent.noderank,
        "devices": list(agent.devices),
        "cores": [topology.as_list(rank["cpus"]) for rank in order["ranks"]],  # an empty string: not bound
        "log_dir": agent.log_dir,
        "code_root": agent.code_root,
        "clock_offset_s": round(agent.clock_offset_s, 6),
        "python": interpreter.python,
    }
