"""One round of a case: the orders of its agents, and the round from the plan to its files on disk."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from flagperf_driver.layout import CASE, task_log
from flagperf_driver.node.agent.timer import now_ms
from flagperf_driver.node.deployed_code import module_argv
from flagperf_driver.node.sampling import topology
from flagperf_driver.rank_process import RankProcess, threads_per_rank
from pytest_flagperf import stored
from pytest_flagperf.hosts import HostError, silence
from pytest_flagperf.hosts.deploy import pack, sweep
from pytest_flagperf.hosts.host_pool import AT_ONCE
from pytest_flagperf.plan import PlacedHost, Placement, Plan, rank_processes
from pytest_flagperf.progress import has_subscriber
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import (
    HostEnd,
    RankEnd,
    RoundDir,
    RoundFault,
    RoundRecord,
    begun_ms,
    cause_of_interrupt,
    first_training,
)

from .agents import GRACE_S, Agents, HostAgent
from .collect import collect
from .drill import Drill
from .round_messages import first_fault, ranks, start_tracker, unfinished

_log = logging.getLogger("flagperf.rounds")
_SECRET = secrets.token_bytes(32)
_STARTER = "flagperf_driver.node.agent.starter"
Explain = Callable[[RoundFault, Iterable[str]], RoundFault]
"""Adds to the fault of a round why its hosts, given by their names, ended it."""


def unchanged(fault: RoundFault, _hosts: Iterable[str]) -> RoundFault:
    """Return the fault: this machine and hosts over SSH end no round."""
    return fault


@dataclass(frozen=True)
class RoundOptions:
    """Options of a round besides the plan."""

    monitors: Mapping[str, Any] | None = None  # the sampler's orders without the devices
    clear_caches: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # labels of the round's containers
    plan_entries: Mapping[str, Any] = field(default_factory=dict)  # additional entries of plan.json
    explain: Explain = unchanged
    hidden: Sequence[str] = ()  # folders that ranks may not read: earlier rounds and runs
    bind: bool = True  # bind ranks to the cores near their devices, if known
    near: Mapping[str, Mapping[int, Sequence[int]]] = field(
        default_factory=dict
    )  # by host and device: the cores near it


NO_OPTIONS = RoundOptions()


def run_round(
    plan: Plan,
    round_number: int,
    directory: Path,
    *,
    agents: Agents,
    interpreters: Mapping[str, Interpreter],
    options: RoundOptions = NO_OPTIONS,
) -> RoundRecord:
    """Run a round to its end, good or bad, and leave no process; a KeyboardInterrupt is raised again afterwards.

    The agents hold devices on every host. The round writes plan.json, case.json, round.json and the hosts' logs into
    ``directory``.
    """
    started_ms, begin = now_ms(), _clock_s()
    stored_round = RoundDir(directory)
    round_orders = RoundOrders(plan, round_number, _identity(stored_round), agents, interpreters, options)

    def start() -> None:
        for agent in agents.all:
            _log.info("%s: %s: devices %s", stored_round.label, agent.name, list(agent.leased.devices))
        placement, orders = round_orders.placement_and_orders()
        stored_round.write_inputs(
            round_orders.plan_json(placement, orders), round_orders.case_json(agents.all[0].leased.code_root)
        )
        agents.start(orders)

    stored_plan = StoredPlan.from_json(stored.to_json_types({**round_orders.facts(), "hosts": []}), f"case {plan.case}")
    return _run_to_end(agents, stored_round, stored_plan, start, options.explain, started_ms, begin)


def _identity(directory: RoundDir) -> dict[str, str]:
    """Return the token of a round, which the ranks' logs repeat, and the name of its training, which checkpoints have.

    A log of another round and a checkpoint of another training are recognized by them. A round that --resume runs again
    continues the training of its first try.
    """
    token, run = secrets.token_hex(8), directory.path.absolute().parent.parent.name
    return {"token": token, "training": first_training(directory) or f"{run} {directory.label} {token}"}


def follow_round(
    directory: Path,
    agents: Agents,
    *,
    end_because: str | None = None,
    explain: Explain = unchanged,
) -> RoundRecord:
    """Follow a round that another controller started to its end; ``agents`` holds its agents.

    With ``end_because`` the round is ended at once, with this reason as its fault.
    """
    stored_round = RoundDir(directory)
    plan = stored_round.read_plan()

    def started() -> None:
        for agent in agents.all:
            # Exits that the other controller received are not sent again; the logs have FINISHED.
            agent.started.finished.update(ranks(agent, plan))
        if end_because is not None:
            raise HostError(end_because)

    return _run_to_end(agents, stored_round, plan, started, explain, begun_ms(stored_round))


def _run_to_end(
    agents: Agents,
    directory: RoundDir,
    plan: StoredPlan,
    start: Callable[[], None],
    explain: Explain,
    started_ms: int,
    begin: float | None = None,
) -> RoundRecord:
    tracker = start_tracker(plan, started_ms)
    drill = Drill(() if plan.throughput_only else plan.drill, directory)
    fault, state = None, "failed"
    try:
        start()
        fault = first_fault(agents, tracker, plan, drill) or unfinished(agents.all, plan)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = RoundFault("agent", "", None, str(error))
    except BaseException as error:
        fault = RoundFault("interrupted", "", None, cause_of_interrupt(error))
        state = "interrupted"
        raise
    finally:
        _stop(agents, "the round was interrupted" if state == "interrupted" else "the round is over")
        # Processes of a dead agent may still write logs: end them before the logs are fetched.
        gone = [agent for agent in agents.all if agent.gone]
        swept = _sweep(gone)
        collected = collect(agents, directory.path, failed=state != "finished")
        agents.dismiss(keep=collected.keep)
        swept += _sweep(agent for agent in agents.all if agent not in gone)
        if fault is not None and state == "failed":
            fault = explain(fault, [agent.name for agent in agents.all])
        seconds = None if begin is None else round(_clock_s() - begin, 3)
        ends, warnings = _host_ends(agents), _warnings(agents)
        silences = tuple(silence for agent in agents.all for silence in agent.silences)
        end = RoundRecord(
            state, fault, started_ms, now_ms(), seconds, ends, swept, collected.missing, warnings, silences,
            tuple(drill.struck),
        )  # fmt: skip
        _write_end(directory, end)
        _log.info("%s: %s%s", directory.label, state, f": {fault.sentence}" if fault else "")
    return end


# -- after the end ----------------------------------------------------------------------------------------


def _write_end(directory: RoundDir, end: RoundRecord) -> None:
    """Write round.json; if an interrupted round cannot be written, the interrupt is raised, not the WriteError."""
    try:
        directory.write_record(end)
    except stored.WriteError:
        if end.state != "interrupted":
            raise


def _stop(agents: Agents, reason: str) -> None:
    """Ask the agents to end their ranks and record the exits."""
    if all(agent.done for agent in agents.all):
        return
    agents.stop(reason)
    try:
        for agent, message in agents.messages():
            if message["type"] in ("exit", "over"):
                agent.started.take_exits(message)
    except TimeoutError:
        pass  # the lease ends the ranks


def _sweep(agents: Iterable[HostAgent]) -> tuple[str, ...]:
    """End and remove processes and containers of agents that did not end in order; return their names."""
    left = [agent for agent in agents if agent.is_started and not agent.over]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(line for lines in pool.map(_sweep_host, left) for line in lines)


def _sweep_host(agent: HostAgent) -> list[str]:
    if agent.lost:
        return []  # unreachable: the agent ends its ranks when its lease is over, or when it is reached again
    try:
        swept, problems = sweep(agent.host, agent.code or pack({}), agent.started.log_dir, agent.started.docker)
    except HostError as error:
        agent.warnings.append(f"{agent.name} could not be checked for leftovers of the round: {error}")
        return []
    agent.warnings += [f"{agent.name}: {problem}" for problem in problems]
    return swept


def _host_ends(agents: Agents) -> tuple[HostEnd, ...]:
    return tuple(
        HostEnd(
            agent.noderank,
            agent.name,
            tuple(
                RankEnd(rank, exit_.get("code"), exit_.get("signal"), exit_.get("cause"))
                for rank, exit_ in sorted(agent.started.exits.items() if agent.is_started else ())
            ),
        )
        for agent in agents.all
    )


def _warnings(agents: Agents) -> tuple[str, ...]:
    slow = (
        f"rank {rank} on {agent.name} was slow: its steps took {ratio:.2g} times the median of the host's ranks"
        for agent in agents.all
        if agent.is_started
        for rank, ratio in agent.started.slow.items()
    )
    return (*(line for agent in agents.all for line in agent.warnings), *slow)


def _clock_s() -> float:
    """Return the seconds of a clock that also counts while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


# -- the orders for each host, and the files that record them before the round starts ---------------------------------


@dataclass(frozen=True)
class RoundOrders:
    """The orders for the hosts of a round; ``identity``: the token of the round and the name of its training."""

    plan: Plan
    number: int
    identity: Mapping[str, str]
    agents: Agents
    interpreters: Mapping[str, Interpreter]
    options: RoundOptions

    def placement_and_orders(self) -> tuple[Placement, list[dict[str, Any]]]:
        """Create the containers of the ranks; return where the ranks run, and the order for each host's agent."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            create = pool.map if any(python.container for python in self.interpreters.values()) else map
            containers = list(create(self._container, self.agents.all))
        placement = self.placement(only_leased=only_leased(containers))
        ranks = rank_processes(self.plan, placement)
        case = cache(lambda code_root: json.dumps(self.case_json(code_root), indent=1) + "\n")
        cases = (case(agent.leased.code_root) for agent in self.agents.all)
        return placement, [*map(self._order, self.agents.all, ranks, containers, cases)]

    def _order(
        self, agent: HostAgent, ranks: Sequence[RankProcess], container: Mapping[str, Any] | None, case: str
    ) -> dict[str, Any]:
        plan, options = self.plan, self.options
        deadlines = {name: plan.config.get(name) for name in ("init_timeout_s", "hang_timeout_s", "round_timeout_s")}
        folders = plan.config.get("checkpoint_dir"), plan.config.get("weights_dir"), plan.replay.get("states")
        return {
            "op": "start",
            "log": task_log(plan.case.framework_name),
            "files": {CASE: case},
            "ranks": [process.to_json() for process in ranks],
            "container": container,
            "monitors": self._monitors(agent, container),
            "clear_caches": options.clear_caches,
            "show": self.agents.is_noted and has_subscriber("log"),  # send every line of the ranks' logs
            "vendor_code": any(addition.runs_code for addition in plan.additions),
            "order_secret": self._order_secret if plan.saves_states and agent.noderank == 0 else None,
            "writable": [*filter(None, folders)],
            "hidden": list(options.hidden),
            **deadlines,
            "grace_s": GRACE_S,
            "beat_s": silence.every_s(silence.BEAT_S, plan.shape.nnodes),
            "samples_s": silence.every_s(silence.SAMPLES_S, plan.shape.nnodes),
        }

    @property
    def _order_secret(self) -> int:
        """Return the secret that the order of the data follows from, the same for each start of a training.

        Only this process and the agent of the first host know it.
        """
        return int.from_bytes(sha256(_SECRET + self.identity["training"].encode()).digest(), "little")

    def case_json(self, code_root: str) -> dict[str, Any]:
        """Return the case.json of the ranks of hosts with the code in this folder."""
        return {**self.plan.case_json(self.number, code_root), **self.identity}

    def _container(self, agent: HostAgent) -> Mapping[str, Any] | None:
        """Create, but do not start, the container of this round's ranks; its program starts them."""
        interpreter, data_dir, lease = self.interpreters[agent.name], self.plan.data_dir, agent.leased
        if interpreter.container is None:
            return None
        return interpreter.container.create(
            agent.host,
            argv=[*module_argv(interpreter.python, lease.code_root, _STARTER), lease.log_dir],
            log_dir=lease.log_dir,
            read_only=[lease.code_root, *([data_dir] if data_dir else [])],
            devices=lease.devices,
            labels=self.options.labels,
        )

    def placement(self, *, only_leased: bool = False) -> Placement:
        """Return the placement of the plan on the hosts that the agents hold."""
        plan, hosts = self.plan, tuple(map(self._placed, self.agents.all))
        threads = (
            threads_per_rank(len(agent.leased.cpus), plan.case.nproc, host.cpus)
            for agent, host in zip(self.agents.all, hosts, strict=True)
        )
        return Placement(
            hosts, self.agents.all[0].leased.port, 1 if plan.devices_are_cores else min(threads), only_leased
        )

    def _placed(self, agent: HostAgent) -> PlacedHost:
        cpus, interpreter, lease = self.cores(agent), self.interpreters[agent.name], agent.leased
        return PlacedHost(
            name=agent.name,
            noderank=agent.noderank,
            address=agent.host.address,
            devices=lease.devices,
            cores=tuple(map(topology.as_list, cpus or ((),) * self.plan.case.nproc)),
            log_dir=lease.log_dir,
            code_root=lease.code_root,
            clock_offset_s=round(lease.clock_offset_s, 6),
            python=interpreter.python,
            cpus=cpus,
            env=interpreter.env,
            path=interpreter.path,
        )

    def cores(self, agent: HostAgent) -> tuple[tuple[int, ...], ...]:
        """Return the cores that each rank is bound to: its leased core on CPUs, else the cores near its device."""
        if not self.options.bind:
            return ()
        cpus, devices = agent.leased.cpus, agent.leased.devices
        if self.plan.devices_are_cores:
            enough = all(device < len(cpus) for device in devices)
            return tuple((cpus[device],) for device in devices) if enough else ()
        near, usable = self.options.near.get(agent.name, {}), set(cpus)
        cores = tuple(tuple(sorted(usable.intersection(near.get(device, ())))) for device in devices)
        return cores if any(cores) else ()

    def _monitors(self, agent: HostAgent, container: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the sampler's orders; cores are not devices for it."""
        monitors = self.options.monitors
        if monitors is None:
            return None
        probe = monitors.get("probe")
        lease = agent.leased
        devices = list(lease.devices) if probe or monitors.get("nvml") else []
        own: dict[str, Any] = {"probe": {"module": f"{lease.code_root}/{probe}"}} if probe else {}
        own |= {"processors_first": True} if self.plan.devices_are_cores else {}
        inside = {"container": container["id"]} if container and "id" in container else {}
        return {**monitors, **own, **inside, "folder": lease.log_dir, "devices": devices}

    def facts(self) -> dict[str, Any]:
        """Return the entries of plan.json that are known before the hosts are."""
        return {
            **self.plan.to_json(),
            **self.identity,
            "round": self.number,
            "seed": self.plan.seed(self.number),
        }

    def plan_json(self, placement: Placement, orders: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return plan.json, for reports and for a controller that resumes the round.

        It contains no environment variables, which may be secret.
        """
        first, options = self.interpreters[self.agents.all[0].name], self.options
        others = [one for interpreter in self.interpreters.values() for one in interpreter.other_versions]
        return {
            **self.facts(),
            "hosts": [host.to_json() for host in placement.hosts],
            "python": first.python,
            "interpreter": {"label": first.label, **first.details},
            # each package with another version than required once
            "other_versions": stored.to_json_types([*{one.key: one for one in others}.values()]),
            "code_root": self.agents.all[0].leased.code_root,
            # The requested samples: a report shows which of them are missing.
            "monitors": dict(options.monitors) if options.monitors else None,
            "bind": options.bind,
            **options.plan_entries,
            "argv": {
                agent.name: [rank["argv"] for rank in order["ranks"]]
                for agent, order in zip(self.agents.all, orders, strict=True)
            },
        }


def only_leased(containers: Collection[Mapping[str, Any] | None]) -> bool:
    """Return True if ranks see only the devices of their round, on all hosts."""
    return all(container and container["only_leased"] for container in containers)
