"""Watch a running round: turn the messages of its agents into progress and into the first cause of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flagperf_driver import events
from pytest_flagperf.hosts import Message
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.report.terminal.progress import RoundProgress
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundFault

from .agents import Agents, HostAgent
from .progress import Bounds, Tracker


def start_tracker(plan: StoredPlan, started_ms: int) -> Tracker:
    start = RoundProgress(
        case=str(plan.case),
        round=plan.round,
        metric_name=plan.metric.name,
        target=plan.metric.target,
        sample_unit=plan.sample_unit,
    )
    return Tracker(start, Bounds.of(plan.config), started_ms)


def watch(agents: Agents, tracker: Tracker, live: Live) -> RoundFault | None:
    """Read messages until all agents are done; the first fault of any agent stops all. Return the first cause."""
    faults: list[tuple[HostAgent, RoundFault]] = []
    live.progress(tracker.now)
    for agent, message in agents.messages():
        fault = _take(agent, message, tracker, live)
        if fault is not None:
            faults.append((agent, fault))
            agents.stop(fault.sentence)
    return _with_details(*min(faults, key=_priority)) if faults else None


def _priority(entry: tuple[HostAgent, RoundFault]) -> int:
    """Return 0 for the end of a host or a container, 1 for a killed rank, and 2 for faults that may follow."""
    agent, fault = entry
    if fault.kind in ("lost", "agent", "container"):
        return 0
    killed = fault.rank is not None and agent.exits.get(fault.rank, {}).get("signal")
    return 1 if killed and fault.kind == "crash" else 2


def _take(agent: HostAgent, message: Message, tracker: Tracker, live: Live) -> RoundFault | None:
    kind = message["type"]
    if kind == "perflog":
        _take_event(agent, message, tracker, live)
    elif kind == "lines":
        for line in message["lines"]:
            live.log(message["rank"], line)
    elif kind == "exit":
        agent.exits[message["rank"]] = message
    elif kind == "beat":
        for slow, ratio in message["slow"].items():
            agent.slow[slow] = max(ratio, agent.slow.get(slow, 0.0))
        if message.get("ranks"):
            live.host(agent.name, {"ranks": message["ranks"], "slow": message["slow"]})
    elif kind == "samples":
        live.host(agent.name, {"samples": {name: message[name] for name in ("host", "devices")}})
    elif kind == "warning":
        agent.warnings.append(f"{agent.name}: {message['sentence']}")
    elif kind == "fault":
        return RoundFault(message["kind"], agent.name, message.get("rank"), message["sentence"])
    elif kind == "gone" and not agent.over:
        if agent.lost:
            return RoundFault("lost", agent.name, None, f"{agent.name} is lost and did not come back: {agent.gone}")
        return RoundFault("agent", agent.name, None, f"the agent on {agent.name} is gone: {agent.gone}")
    return None


def _take_event(agent: HostAgent, message: Message, tracker: Tracker, live: Live) -> None:
    rank, event, value = message["rank"], message["event"], message.get("value") or {}
    if event == events.FINISHED:
        agent.finished.add(rank)
    elif event == events.FAILED:
        agent.failed.setdefault(rank, message)
    if rank == 0:
        live.progress(tracker.take(event, value, message["time_ms"] - round(agent.clock_offset_s * 1000)))


def _with_details(agent: HostAgent, fault: RoundFault) -> RoundFault:
    """Return the fault with the rank's error and its last lines, which may arrive after the fault."""
    if fault.rank is None:
        return fault
    lines = tuple(agent.exits.get(fault.rank, {}).get("last_lines") or ())
    sentence = fault.sentence
    error = "{type}: {error}".format(**{"type": "", "error": "", **agent.failed.get(fault.rank, {}).get("value", {})})
    if error != ": " and error not in sentence:
        sentence = f"{sentence}: {error}"
    return replace(fault, sentence=sentence, last_lines=lines)


def ranks(agent: HostAgent, plan: StoredPlan) -> range:
    first = agent.noderank * plan.case.nproc
    return range(first, first + plan.case.nproc)


def unfinished(agents: Sequence[HostAgent], plan: StoredPlan) -> RoundFault | None:
    """Return a fault for the first rank without a FINISHED event, whatever its exit code; None if all have one."""
    for agent in agents:
        for rank in ranks(agent, plan):
            if rank not in agent.finished:
                lines = tuple(agent.exits.get(rank, {}).get("last_lines") or ())
                sentence = f"rank {rank} ended without a {events.FINISHED} line"
                return RoundFault("unfinished", agent.name, rank, sentence, lines)
    return None
