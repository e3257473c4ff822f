"""One round of a case, from a plan to what is left of it on disk: read it top to bottom."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from flagperf_driver import events
from pytest_flagperf.cluster import HostError, Message
from pytest_flagperf.cluster.deploy import module_argv, sweep
from pytest_flagperf.launch import RankProcess, Site, World, launchers, threads_per_rank
from pytest_flagperf.runtime import Interpreter, Mount

from .collect import Gone, Missing, collect, fetch
from .crew import GRACE_S, Agent, Crew, take_up
from .muster import MODULE, Needs, muster
from .progress import Bounds, Progress, Tracker

__all__ = [
    "MODULE", "Crew", "Fault", "Gone", "Listener", "Missing", "Needs", "Progress", "RoundEnd", "Wishes",
    "fetch", "follow_round", "muster", "run_round", "take_up", "write_json",
]  # fmt: skip

SCHEMA = 1
# Not for the ranks: what a harness or a launcher above us set for itself.
_NOT_INHERITED = ("PYTEST_", "COV_", "PYTHON", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE")

Listener = Callable[[Progress], None]
Show = Callable[[int, str], None]


class Plan(Protocol):
    """What a round asks of a plan."""

    @property
    def launcher(self) -> str: ...

    @property
    def visible_devices(self) -> str | None: ...

    def to_json(self) -> dict[str, Any]: ...

    def case_json(self, round_number: int, seed: int, code_root: str, /) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Wishes:
    """What a user may want of a round beside the plan."""

    monitors: Mapping[str, Any] | None = None  # the sampler's orders, but for the devices
    clear_caches: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # on what is started for it
    show: Show | None = None  # gets every line of the ranks' logs


@dataclass(frozen=True)
class Audience:
    """Who is told while a round runs."""

    progress: Listener
    show: Show | None = None


@dataclass(frozen=True)
class Fault:
    """The first thing that went wrong; all later ones follow from it."""

    kind: str
    host: str
    rank: int | None
    sentence: str
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundEnd:
    """How a round ended: what round.json says."""

    directory: Path
    state: str  # finished, failed or interrupted
    fault: Fault | None
    started_ms: int
    ended_ms: int
    hosts: tuple[Message, ...] = ()
    swept: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        del body["directory"]
        return {"schema": SCHEMA, **body}


def run_round(
    plan: Plan,
    round_number: int,
    directory: Path,
    *,
    crew: Crew,
    interpreters: Mapping[str, Interpreter],
    listener: Listener = lambda _: None,
    wishes: Wishes = Wishes(),
) -> RoundEnd:
    """Run it to its end, whatever that is, and leave no process; a KeyboardInterrupt passes on afterwards.

    The crew holds devices on every host. Written into ``directory``: plan.json, case.json, round.json and the
    hosts' logs.
    """
    started_ms = _now_ms()
    described = plan.to_json()

    def start() -> None:
        orders = _orders(plan, described, round_number, crew.agents, interpreters, wishes)
        _write_inputs(plan, described, round_number, directory, crew.agents, orders, interpreters)
        crew.start(orders)

    return _to_the_end(crew, directory, described, round_number, started_ms, Audience(listener, wishes.show), start)


def follow_round(
    directory: Path,
    crew: Crew,
    listener: Listener = lambda _: None,
    show: Show | None = None,
    *,
    end_because: str | None = None,
) -> RoundEnd:
    """Take a round to its end that another controller started; ``crew`` holds its agents.

    With a reason to end it, that is done at once, and is its fault.
    """
    described = json.loads((directory / "plan.json").read_text("utf-8"))
    started_ms = int((directory / "plan.json").stat().st_mtime * 1000)

    def started() -> None:
        for agent in crew.agents:
            agent.by_launcher = described["launcher"] != "env"
            # What they told the other controller is not told again; their logs have it.
            agent.finished.update(_ranks(agent, described))
        if end_because is not None:
            raise HostError(end_because)

    number = int(described["round"])
    return _to_the_end(crew, directory, described, number, started_ms, Audience(listener, show), started)


def _to_the_end(
    crew: Crew,
    directory: Path,
    described: Mapping[str, Any],
    round_number: int,
    started_ms: int,
    audience: Audience,
    start: Callable[[], None],
) -> RoundEnd:
    tracker = _tracker(described, round_number, started_ms)
    fault, state = None, "failed"
    try:
        start()
        fault = _watch(crew, tracker, audience) or _unfinished(crew.agents, described)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = Fault("agent", "", None, str(error))
    except BaseException as error:
        fault = Fault("interrupted", "", None, f"interrupted by {type(error).__name__} {error}".strip())
        state = "interrupted"
        raise
    finally:
        _stop(crew, "the round was interrupted" if state == "interrupted" else "the round is over")
        missing = collect(crew.agents)
        crew.dismiss(keep=[each.host for each in missing])
        swept = _sweep(crew.agents)
        end = RoundEnd(
            directory, state, fault, started_ms, _now_ms(), _host_ends(crew), swept, missing, _warnings(crew)
        )
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "round.json", end.to_json())
    return end


# -- before the start -------------------------------------------------------------------------------------


def _orders(
    plan: Plan,
    described: Mapping[str, Any],
    round_number: int,
    agents: Sequence[Agent],
    interpreters: Mapping[str, Interpreter],
    wishes: Wishes,
) -> list[dict[str, Any]]:
    """What each host's agent is told to do."""
    # At once: where ranks live in containers, each host makes its own.
    with ThreadPoolExecutor(max(1, len(agents))) as pool:
        made = pool.map(lambda agent: _container(agent, interpreters[agent.name], described, wishes), agents)
        containers = {agent.name: container for agent, container in zip(agents, made, strict=True)}
    world = _world(plan, described, agents, containers)

    def order(agent: Agent) -> dict[str, Any]:
        interpreter = interpreters[agent.name]
        site = Site(
            python=interpreter.python,
            program=f"{agent.code_root}/suites/{described['model']}/{described['framework']}/run_pretraining.py",
            case_file=f"{agent.log_dir}/case.json",
            log_dir=agent.log_dir,
            code_root=agent.code_root,
            cpus=_cpus(described, agent),
        )
        processes = launchers()[plan.launcher](world, agent.noderank, site)
        case = plan.case_json(round_number, _seed(described, round_number), agent.code_root)
        return {
            "op": "start",
            "log": f"start_{described['framework']}_task.log",
            "files": {"case.json": json.dumps(case, indent=1) + "\n"},
            "not_inherited": list(_NOT_INHERITED),
            "ranks": [_entry(each, {**interpreter.env, **each.env}, site) for each in processes],
            "follow": [rank for each in processes for rank in each.reports],
            "container": containers[agent.name],
            "monitors": _monitors(wishes, agent),
            "clear_caches": wishes.clear_caches,
            "show": wishes.show is not None,
            **_deadlines(described["config"]),
        }

    return [order(agent) for agent in agents]


def _container(
    agent: Agent, interpreter: Interpreter, described: Mapping[str, Any], wishes: Wishes
) -> Mapping[str, Any] | None:
    """The container of this round's ranks, made and not yet started; its main process is an agent of its own."""
    if interpreter.container is None:
        return None
    mounts = [Mount(agent.code_root, agent.code_root), Mount(agent.log_dir, agent.log_dir, read_only=False)]
    if described["data_dir"]:
        mounts.append(Mount(described["data_dir"], described["data_dir"]))
    argv = [*module_argv(interpreter.python, agent.code_root, MODULE), "--inner", agent.log_dir]
    labels = {**wishes.labels, "flagperf.log_dir": agent.log_dir}
    name = f"flagperf-{agent.log_dir.strip('/').replace('/', '-')}"[-120:].lstrip("-_.")
    return interpreter.container.create(
        agent.host, name, argv=argv, mounts=mounts, devices=agent.devices, labels=labels
    )


def _world(
    plan: Plan,
    described: Mapping[str, Any],
    agents: Sequence[Agent],
    containers: Mapping[str, Mapping[str, Any] | None],
) -> World:
    cores = min(len(agent.cpus) for agent in agents)
    nproc = described["nproc"]
    return World(
        addresses=tuple(agent.host.address for agent in agents),
        nproc=nproc,
        master_addr=agents[0].host.address,
        master_port=agents[0].port,
        # A container may have numbers of its own for the devices that it was given.
        devices=tuple(tuple((containers[agent.name] or {}).get("devices", agent.devices)) for agent in agents),
        visible_devices_env=plan.visible_devices,
        threads_per_rank=threads_per_rank(cores, nproc, card_is_core=_card_is_core(described)),
    )


def _card_is_core(described: Mapping[str, Any]) -> bool:
    return bool(described["device"] == "cpu")


def _monitors(wishes: Wishes, agent: Agent) -> dict[str, Any] | None:
    """The sampler's orders; a core that no tool knows is no device to it."""
    if wishes.monitors is None:
        return None
    probe = wishes.monitors.get("probe")
    devices = list(agent.devices) if probe or wishes.monitors.get("nvml") else []
    own = {"probe": {"module": f"{agent.code_root}/{probe}"}} if probe else {}
    return {**wishes.monitors, **own, "folder": agent.log_dir, "devices": devices}


def _cpus(described: Mapping[str, Any], agent: Agent) -> tuple[int, ...]:
    """The core of each rank where a card is a core and there are as many cores as that."""
    if not _card_is_core(described) or any(device >= len(agent.cpus) for device in agent.devices):
        return ()
    return tuple(agent.cpus[device] for device in agent.devices)


def _entry(process: RankProcess, env: Mapping[str, str], site: Site) -> dict[str, Any]:
    return {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "argv": list(process.argv),
        "env": dict(env),
        "cwd": site.log_dir,
        "cpus": list(process.cpus),
        # A launcher of several ranks is none of them: they have their logs, it has its own.
        "log": f"rank{process.rank}.out.log" if process.reports == (process.rank,) else "launcher.log",
    }


def _deadlines(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("init_timeout_s", "hang_timeout_s", "round_timeout_s")
    return {**{name: config.get(name) for name in names}, "grace_s": GRACE_S}


def _seed(described: Mapping[str, Any], round_number: int) -> int:
    return int(described["config"].get("seed", 0)) + round_number - 1


def _write_inputs(
    plan: Plan,
    described: Mapping[str, Any],
    round_number: int,
    directory: Path,
    agents: Sequence[Agent],
    orders: Sequence[Mapping[str, Any]],
    interpreters: Mapping[str, Interpreter],
) -> None:
    """What reports read, and what another controller needs to go on with it. No environment: it may be secret."""
    first = interpreters[agents[0].name]
    facts = {
        "round": round_number,
        "seed": _seed(described, round_number),
        "hosts": [_placed(agent, interpreters[agent.name]) for agent in agents],
        "python": first.python,
        "interpreter": {"label": first.label, **first.details},
        "code_root": agents[0].code_root,
        "argv": {
            agent.name: [rank["argv"] for rank in order["ranks"]] for agent, order in zip(agents, orders, strict=True)
        },
    }
    directory.mkdir(parents=True, exist_ok=True)
    case = plan.case_json(round_number, _seed(described, round_number), agents[0].code_root)
    write_json(directory / "case.json", case)
    write_json(directory / "plan.json", {**described, **facts})


def _placed(agent: Agent, interpreter: Interpreter) -> dict[str, Any]:
    return {
        "name": agent.name,
        "address": agent.host.address,
        "noderank": agent.noderank,
        "devices": list(agent.devices),
        "log_dir": agent.log_dir,
        "code_root": agent.code_root,
        "clock_offset_s": round(agent.clock_offset_s, 6),
        "python": interpreter.python,
    }


# -- while it runs ----------------------------------------------------------------------------------------


def _tracker(described: Mapping[str, Any], round_number: int, started_ms: int) -> Tracker:
    metric = described["metric"]
    start = Progress(
        case=described["case"],
        round=round_number,
        metric_name=metric["name"],
        target=metric["target"],
        sample_unit=described["sample_unit"],
    )
    return Tracker(start, Bounds.of(described["config"]), started_ms)


def _watch(crew: Crew, tracker: Tracker, audience: Audience) -> Fault | None:
    """Listen until all agents are done; the first fault of any of them stops all."""
    faults: list[tuple[Agent, Fault]] = []
    audience.progress(tracker.now)
    for agent, message in crew.messages():
        new = _take(agent, message, tracker, audience)
        if new is not None:
            faults.append((agent, new))
            crew.stop(new.sentence)
    return _worded(*min(faults, key=_blame)) if faults else None


def _blame(told: tuple[Agent, Fault]) -> int:
    """Which of several faults the others follow from: a host's or a container's end, a killed rank, then the first."""
    agent, fault = told
    if fault.kind in ("lost", "agent", "container"):
        return 0
    killed = fault.rank is not None and agent.exits.get(fault.rank, {}).get("signal")
    return 1 if killed and fault.kind == "crash" else 2


def _take(agent: Agent, message: Message, tracker: Tracker, audience: Audience) -> Fault | None:
    kind = message["type"]
    if kind == "perflog":
        _take_event(agent, message, tracker, audience.progress)
    elif kind == "lines" and audience.show is not None:
        for line in message["lines"]:
            audience.show(message["rank"], line)
    elif kind == "exit":
        agent.exits[message["rank"]] = message
    elif kind == "beat":
        for slow, ratio in message["slow"].items():
            agent.slow[slow] = max(ratio, agent.slow.get(slow, 0.0))
    elif kind == "warning":
        agent.warnings.append(f"{agent.name}: {message['sentence']}")
    elif kind == "fault":
        return Fault(message["kind"], agent.name, message.get("rank"), message["sentence"])
    elif kind == "gone" and not agent.over:
        if agent.lost:
            return Fault("lost", agent.name, None, f"{agent.name} is lost and did not come back: {agent.gone}")
        return Fault("agent", agent.name, None, f"the agent on {agent.name} is gone: {agent.gone}")
    return None


def _take_event(agent: Agent, message: Message, tracker: Tracker, listener: Listener) -> None:
    rank, event, value = message["rank"], message["event"], message.get("value") or {}
    if event == events.FINISHED:
        agent.finished.add(rank)
    elif event == events.FAILED:
        agent.failed.setdefault(rank, message)
    if rank == 0:
        listener(tracker.take(event, value, message["time_ms"] - round(agent.clock_offset_s * 1000)))


def _worded(agent: Agent, fault: Fault) -> Fault:
    """The fault with the last words of the rank that it began with, which may have come after it."""
    if fault.rank is None:
        return fault
    lines = tuple(agent.exits.get(fault.rank, {}).get("last_lines") or ())
    rank, sentence = fault.rank, fault.sentence
    if fault.kind == "crash" and agent.by_launcher and agent.failed:
        # The launcher died of the rank that failed first.
        rank = min(agent.failed, key=lambda each: int(agent.failed[each]["time_ms"]))
        sentence = f"rank {rank} failed ({sentence})"
    said = "{type}: {error}".format(**{"type": "", "error": "", **agent.failed.get(rank, {}).get("value", {})})
    if said != ": " and said not in sentence:
        sentence = f"{sentence}: {said}"
    return replace(fault, rank=rank, sentence=sentence, last_lines=lines)


def _ranks(agent: Agent, described: Mapping[str, Any]) -> range:
    first = agent.noderank * int(described["nproc"])
    return range(first, first + int(described["nproc"]))


def _unfinished(agents: Sequence[Agent], described: Mapping[str, Any]) -> Fault | None:
    """A rank that owes a FINISHED and did not write one failed, whatever its exit code."""
    for agent in agents:
        for rank in _ranks(agent, described):
            if rank not in agent.finished:
                lines = tuple(agent.exits.get(rank, {}).get("last_lines") or ())
                sentence = f"rank {rank} ended without a {events.FINISHED} line"
                return Fault("unfinished", agent.name, rank, sentence, lines)
    return None


# -- after the end ----------------------------------------------------------------------------------------


def _stop(crew: Crew, reason: str) -> None:
    """Let the agents end their ranks; what they still say of exits is kept."""
    if all(agent.done for agent in crew.agents):
        return
    crew.stop(reason)
    try:
        for agent, message in crew.messages():
            if message["type"] == "exit":
                agent.exits[message["rank"]] = message
    except TimeoutError:
        pass  # its lease ends them


def _sweep(agents: Sequence[Agent]) -> tuple[str, ...]:
    """What outlived its agent, where one did not end in order; there should be nothing."""
    return tuple(line for agent in agents if agent.started and not agent.over for line in _swept(agent))


def _swept(agent: Agent) -> Iterator[str]:
    if agent.lost:
        return  # out of reach; the agent there ends its ranks when its lease is over, or before, when it is asked again
    try:
        yield from sweep(agent.host, agent.log_dir)
    except HostError as error:
        agent.warnings.append(f"{agent.name} could not be searched for what is left of the round: {error}")


def _host_ends(crew: Crew) -> tuple[Message, ...]:
    return tuple(
        {
            "name": agent.name,
            "noderank": agent.noderank,
            "ranks": [
                {key: exit_.get(key) for key in ("rank", "code", "signal", "cause")}
                for _, exit_ in sorted(agent.exits.items())
            ],
        }
        for agent in crew.agents
    )


def _warnings(crew: Crew) -> tuple[str, ...]:
    slow = (
        f"rank {rank} on {agent.name} was slow: {ratio:.2g} times as long for a step as the median of the host's ranks"
        for agent in crew.agents
        for rank, ratio in agent.slow.items()
    )
    return (*(line for agent in crew.agents for line in agent.warnings), *slow)


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
