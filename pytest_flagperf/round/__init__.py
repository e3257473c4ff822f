"""One round of a case, from a plan to what is left of it on disk: read it top to bottom."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from flagperf_driver import events
from pytest_flagperf.cluster import Host, HostError, Message
from pytest_flagperf.cluster.deploy import ask
from pytest_flagperf.cluster.lease import Lease
from pytest_flagperf.launch import RankProcess, Site, World, launchers, threads_per_rank
from pytest_flagperf.runtime import Interpreter

from .agents import MARGIN_S, Agent, Agents, boot
from .progress import Bounds, Progress, Tracker

__all__ = ["Fault", "Progress", "RoundEnd", "run_round"]

SCHEMA = 1
GRACE_S = 3.0  # from a polite word to SIGKILL
SAMPLE_S = 1.0
# Not for the ranks: what a harness or a launcher above us set for itself.
_NOT_INHERITED = ("PYTEST_", "COV_", "PYTHON", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE")

Listener = Callable[[Progress], None]


class Plan(Protocol):
    """What a round asks of a plan."""

    @property
    def launcher(self) -> str: ...

    @property
    def visible_devices(self) -> str | None: ...

    def to_json(self) -> dict[str, Any]: ...

    def case_json(self, round_number: int, seed: int, code_root: str, /) -> dict[str, Any]: ...


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

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        del body["directory"]
        return {"schema": SCHEMA, **body}


@dataclass(frozen=True)
class _Place:
    """One host of the round: what it has, what it was lent and where it logs."""

    host: Host
    noderank: int
    lease: Lease
    log_dir: Path
    facts: Mapping[str, Any]


def run_round(
    plan: Plan,
    round_number: int,
    directory: Path,
    *,
    hosts: Sequence[Host],
    leases: Sequence[Lease],
    interpreter: Interpreter,
    code_root: str,
    listener: Listener = lambda _: None,
) -> RoundEnd:
    """Run it to its end, whatever that is, and leave no process; a KeyboardInterrupt passes on afterwards.

    Written into ``directory``: plan.json, case.json, round.json and the ranks' logs.
    """
    started_ms = _now_ms()
    described = plan.to_json()
    places = _survey(hosts, leases, directory.absolute())
    tasks = _tasks(plan, described, places, interpreter, code_root, directory.absolute())
    _write_inputs(plan, described, round_number, directory, places, tasks, interpreter, code_root)

    tracker = _tracker(described, round_number, started_ms)
    agents, fault, state = Agents(), None, "failed"
    try:
        for place, task in zip(places, tasks, strict=True):
            argv = boot(place.host.python, code_root)
            agents.start(place.host, place.noderank, argv, place.lease.fds, task)
        fault = _watch(agents, tracker, listener) or _unfinished(agents, tasks)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = Fault("agent", "", None, str(error))
    except BaseException as error:
        fault = Fault("interrupted", "", None, f"interrupted by {type(error).__name__} {error}".strip())
        state = "interrupted"
        raise
    finally:
        _end(agents, "the round was interrupted" if state == "interrupted" else "the round is over")
        swept = tuple(line for place in places for line in _sweep(place))
        end = RoundEnd(directory, state, fault, started_ms, _now_ms(), _host_ends(agents), swept)
        write_json(directory / "round.json", end.to_json())
    return end


# -- before the start -------------------------------------------------------------------------------------


def _survey(hosts: Sequence[Host], leases: Sequence[Lease], directory: Path) -> list[_Place]:
    with ThreadPoolExecutor(len(hosts)) as pool:
        facts = list(pool.map(lambda host: ask(host, "facts"), hosts))
    places = []
    for noderank, (host, lease) in enumerate(zip(hosts, leases, strict=True)):
        log_dir = directory / f"{host.name}_noderank{noderank}"
        log_dir.mkdir(parents=True, exist_ok=True)
        places.append(_Place(host, noderank, lease, log_dir, facts[noderank]))
    return places


def _tasks(
    plan: Plan,
    described: Mapping[str, Any],
    places: Sequence[_Place],
    interpreter: Interpreter,
    code_root: str,
    directory: Path,
) -> list[dict[str, Any]]:
    """What each host's agent is told to do."""
    world = _world(plan, described, places)
    launch = launchers()[plan.launcher]
    tasks = []
    for place in places:
        site = Site(
            python=interpreter.python,
            program=f"{code_root}/suites/{described['model']}/{described['framework']}/run_pretraining.py",
            case_file=str(directory / "case.json"),
            log_dir=str(place.log_dir),
            code_root=code_root,
            cpus=_cpus(described, place),
        )
        environ = {name: value for name, value in place.facts["environ"].items() if not name.startswith(_NOT_INHERITED)}
        processes = launch(world, place.noderank, site)
        task = {
            "op": "start",
            "log_dir": site.log_dir,
            "log": f"start_{described['framework']}_task.log",
            "ranks": [_entry(each, {**environ, **interpreter.env, **each.env}, site) for each in processes],
            "follow": [rank for each in processes for rank in each.reports],
        }
        tasks.append({**task, **_deadlines(described["config"])})
    return tasks


def _world(plan: Plan, described: Mapping[str, Any], places: Sequence[_Place]) -> World:
    cores = min(len(place.facts["cpus"]) for place in places)
    nproc = described["nproc"]
    return World(
        addresses=tuple(place.host.address for place in places),
        nproc=nproc,
        master_addr=places[0].host.address,
        master_port=places[0].facts["port"],
        devices=tuple(place.lease.devices for place in places),
        visible_devices_env=plan.visible_devices,
        threads_per_rank=threads_per_rank(cores, nproc, card_is_core=_card_is_core(described)),
    )


def _card_is_core(described: Mapping[str, Any]) -> bool:
    return bool(described["device"] == "cpu")


def _cpus(described: Mapping[str, Any], place: _Place) -> tuple[int, ...]:
    """The core of each rank where a card is a core and there are as many cores as that."""
    cpus = place.facts["cpus"]
    if not _card_is_core(described) or any(device >= len(cpus) for device in place.lease.devices):
        return ()
    return tuple(cpus[device] for device in place.lease.devices)


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
    return {
        "init_timeout_s": config.get("init_timeout_s"),
        "hang_timeout_s": config.get("hang_timeout_s"),
        "round_timeout_s": config.get("round_timeout_s"),
        "lease_s": 0,
        "sample_s": SAMPLE_S,
        "grace_s": GRACE_S,
    }


def _write_inputs(
    plan: Plan,
    described: Mapping[str, Any],
    round_number: int,
    directory: Path,
    places: Sequence[_Place],
    tasks: Sequence[Mapping[str, Any]],
    interpreter: Interpreter,
    code_root: str,
) -> None:
    seed = int(described["config"].get("seed", 0)) + round_number - 1
    hosts = [
        {
            "name": place.host.name,
            "address": place.host.address,
            "noderank": place.noderank,
            "devices": list(place.lease.devices),
        }
        for place in places
    ]
    facts = {
        "round": round_number,
        "seed": seed,
        "hosts": hosts,
        "python": interpreter.python,
        "interpreter": {"label": interpreter.label, **interpreter.details},
        "code_root": code_root,
        "argv": {
            place.host.name: [rank["argv"] for rank in task["ranks"]] for place, task in zip(places, tasks, strict=True)
        },
    }
    write_json(directory / "case.json", plan.case_json(round_number, seed, code_root))
    write_json(directory / "plan.json", {**described, **facts})


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


def _watch(agents: Agents, tracker: Tracker, listener: Listener) -> Fault | None:
    """Listen until all agents are done; the first fault of any of them stops all."""
    fault = None
    listener(tracker.now)
    for agent, message in agents.messages():
        new = _take(agent, message, tracker, listener)
        if new and not fault:
            fault = new
            agents.stop(fault.sentence)
    return _worded(fault, agents)


def _take(agent: Agent, message: Message, tracker: Tracker, listener: Listener) -> Fault | None:
    kind = message["type"]
    if kind == "perflog":
        _take_event(agent, message, tracker, listener)
    elif kind == "exit":
        agent.exits[message["rank"]] = message
    elif kind == "end":
        agent.ended = True
    elif kind == "fault":
        return Fault(message["kind"], agent.host.name, message.get("rank"), message["sentence"])
    elif kind == "silent" or (kind == "gone" and not agent.ended):
        why = agent.channel.complaint() or message.get("why") or "it said nothing of why"
        return Fault("agent", agent.host.name, None, f"the agent on {agent.host.name} is gone: {why}")
    return None


def _take_event(agent: Agent, message: Message, tracker: Tracker, listener: Listener) -> None:
    rank, event, value = message["rank"], message["event"], message.get("value") or {}
    if event == events.FINISHED:
        agent.finished.add(rank)
    elif event == events.FAILED:
        agent.failed.setdefault(rank, message)
    if rank == 0:
        listener(tracker.take(event, value, message["time_ms"]))


def _worded(fault: Fault | None, agents: Agents) -> Fault | None:
    """The fault with the last words of the rank that it began with, which may have come after it."""
    agent = next((each for each in agents.all if fault and each.host.name == fault.host), None)
    if fault is None or fault.rank is None or agent is None:
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
    return Fault(fault.kind, fault.host, rank, sentence, lines)


def _unfinished(agents: Agents, tasks: Sequence[Mapping[str, Any]]) -> Fault | None:
    """A rank that owes a FINISHED and did not write one failed, whatever its exit code."""
    for agent, task in zip(agents.all, tasks, strict=True):
        for rank in task["follow"]:
            if rank not in agent.finished:
                lines = tuple(agent.exits.get(rank, {}).get("last_lines") or ())
                sentence = f"rank {rank} ended without a {events.FINISHED} line"
                return Fault("unfinished", agent.host.name, rank, sentence, lines)
    return None


# -- after the end ----------------------------------------------------------------------------------------


def _end(agents: Agents, reason: str) -> None:
    """Let the agents end their ranks; what they still say of exits is kept."""
    patience_s = GRACE_S + MARGIN_S
    agents.stop(reason)
    deadline = time.monotonic() + patience_s
    try:
        for agent, message in agents.messages(patience_s):
            if message["type"] == "exit":
                agent.exits[message["rank"]] = message
            if time.monotonic() > deadline:
                break
    except TimeoutError:
        pass  # close() ends them
    finally:
        agents.close(timeout_s=GRACE_S)


def _sweep(place: _Place) -> list[str]:
    """What outlived its agent; there should be nothing."""
    try:
        return list(ask(place.host, "sweep", str(place.log_dir))["swept"])
    except HostError as error:
        return [f"{place.host.name} could not be searched: {error}"]


def _host_ends(agents: Agents) -> tuple[Message, ...]:
    return tuple(
        {
            "name": agent.host.name,
            "noderank": agent.noderank,
            "ranks": [
                {key: exit_.get(key) for key in ("rank", "code", "signal", "cause")}
                for _, exit_ in sorted(agent.exits.items())
            ],
        }
        for agent in agents.all
    )


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
