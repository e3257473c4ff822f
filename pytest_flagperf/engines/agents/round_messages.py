"""The messages of a running round's agents: they become its progress, and the first cause of a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagperf_driver import events
from flagperf_driver.heartbeat import Beat
from flagperf_driver.node.agent.rank_health import RankHeartbeat, find_suspect
from flagperf_driver.node.agent.timer import now_ms
from flagperf_driver.node.logs.whole_numbers import LARGEST_COUNT
from flagperf_driver.perflog import number
from pytest_flagperf.hosts import Message
from pytest_flagperf.progress import RoundProgress, note
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import HostSilence, RoundFault

from . import standstill
from .agents import Agents, HostAgent
from .allocation import FAULTS_OF_HOSTS
from .drill import Drill

_HANGS = ("hang", "init_timeout")
_ESTIMATE_AFTER_S = 10.0
"""The shortest training from which the remaining time is estimated."""


@dataclass(frozen=True)
class Mark:
    """A step and when it was complete. The first one warms up: the speed is that of the steps after it."""

    step: int
    samples: int
    time_ms: int


def time_left(config: Mapping[str, Any], now: Mark, since: Mark, elapsed_s: float) -> float | None:
    """Return the seconds to the nearest bound of a config at the mean speed since a mark; None without a bound.

    None also while too little was trained for an estimate.
    """
    trained_s = (now.time_ms - since.time_ms) / 1000
    if trained_s < _ESTIMATE_AFTER_S:
        return None
    done = (("max_steps", now.step, since.step), ("max_samples", now.samples, since.samples))
    times = [
        (number(config.get(bound)) - now) * trained_s / (now - before) for bound, now, before in done if now > before
    ]
    times.append(number(config.get("max_time_s")) - elapsed_s)
    return min((max(0.0, seconds) for seconds in times if math.isfinite(seconds)), default=None)


class Tracker:
    """Keeps the latest progress from a stream of events."""

    def __init__(self, start: RoundProgress, config: Mapping[str, Any], started_ms: int) -> None:
        self.now = start
        self._config = config
        self._started_ms = started_ms
        self._samples = 0
        self._first_step: Mark | None = None
        self.step_s = 0.0
        """The mean time of a step, with the evaluations; 0 before it is known."""

    def take(self, event: str, value: Mapping[str, Any], time_ms: int) -> RoundProgress:
        now = replace(
            self.now,
            elapsed_s=max(0.0, (time_ms - self._started_ms) / 1000),
            phase=f"measured {value.get('point')}" if event == events.MEASURED else _PHASES.get(event, self.now.phase),
            step=_int(value.get("step"), self.now.step),
            loss=_float(value.get("loss"), self.now.loss),
            throughput=_float(value.get("throughput"), self.now.throughput),
            metric=_float(_metrics(event, value).get(self.now.metric_name), self.now.metric),
        )
        self._samples = _int(value.get("samples"), self._samples) if event == events.STEP_END else self._samples
        mark = Mark(now.step, self._samples, time_ms)
        if event == events.STEP_END and self._first_step is None:
            self._first_step = mark
        if self._first_step is not None and mark.step > self._first_step.step:
            trained_s = (time_ms - self._first_step.time_ms) / 1000
            self.step_s = trained_s / (mark.step - self._first_step.step)
        left = time_left(self._config, mark, self._first_step, now.elapsed_s) if self._first_step else None
        self.now = replace(now, time_left_s=left)
        return self.now


_PHASES = {
    events.INIT_START: "init",
    events.TRAIN_START: "training",
    events.EVALUATE: "training",
    events.TRAIN_END: "ending",
    events.FINISHED: "finished",
    events.FAILED: "failed",
}


def _metrics(event: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if event in (events.EVALUATE, events.INIT_EVALUATION):
        return value
    final = value.get("final_metrics") if event == events.FINISHED else None
    return final if isinstance(final, Mapping) else {}


def _float(value: object, otherwise: float | None) -> float | None:
    return otherwise if value is None else number(value)


def _int(value: object, otherwise: int) -> int:
    """Return a count; ignore values that no training can reach."""
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else otherwise


def start_tracker(plan: StoredPlan, started_ms: int) -> Tracker:
    start = RoundProgress(
        case=str(plan.case),
        round=plan.round,
        metric_name=plan.metric.name,
        target=plan.metric.value,
        sample_unit=plan.sample_unit,
    )
    return Tracker(start, plan.config, started_ms)


def first_fault(agents: Agents, tracker: Tracker, plan: StoredPlan, drill: Drill) -> RoundFault | None:
    """Read messages until all agents are done; the first fault of any agent stops all. Return the first cause."""
    faults: list[tuple[HostAgent, RoundFault]] = []
    if agents.is_noted:
        note("progress", progress=tracker.now)
    for agent, message in agents.messages():
        fault = _take(agent, message, tracker)
        drill.take(agents, agent, message, tracker.now.step)
        if agents.is_noted:
            _note(agent, message, tracker)
        if agents.restarts and message["type"] == "beat":
            _give_up_lost(agents, tracker.step_s)
        if fault is not None:
            if fault.kind in _HANGS and not faults:
                agent, fault = _find_hanging_rank(agents, plan, agent, fault)
            faults.append((agent, fault))
            agents.stop(fault.sentence)
    return _with_details(*min(faults, key=_priority)) if faults else None


def _find_hanging_rank(
    agents: Agents, plan: StoredPlan, agent: HostAgent, fault: RoundFault
) -> tuple[HostAgent, RoundFault]:
    """Return the rank for which the ranks of all hosts wait, as the beats of all hosts show, and its agent.

    Each agent compares only the ranks of its own host. After a hang all of them report at the same time, and it is
    chance which report arrives first.
    """
    agent_of = {rank: other for other in agents.all if other.started.beats for rank in ranks(other, plan)}
    heartbeats = {rank: _heartbeat(other.started.beats.get(str(rank))) for rank, other in agent_of.items()}
    reported = heartbeats.get(-1 if fault.rank is None else fault.rank)
    if reported is None:
        return agent, fault
    rank = find_suspect(heartbeats)
    suspect = heartbeats[rank]
    if (suspect.step, suspect.phase) == (reported.step, reported.phase):
        return agent, fault
    kind, did = ("init_timeout", "did not reach its first step") if suspect.step < 1 else ("hang", "made no progress")
    sentence = (
        f"rank {rank} {did}: silent for {suspect.idle_s:.1f} s, {suspect.where}; {fault.host} reported first, but its "
        f"ranks wait: {fault.sentence}"
    )
    return agent_of[rank], RoundFault(kind, agent_of[rank].name, rank, sentence)


def _heartbeat(entry: Mapping[str, Any] | None) -> RankHeartbeat:
    beat = None if entry is None else Beat(1, entry["step"], 0.0, entry["phase"])
    return RankHeartbeat(Path(), beat, 0.0 if entry is None else entry["idle_s"])


def _give_up_lost(agents: Agents, step_s: float) -> None:
    """Stop waiting for lost hosts if the ranks of the others wait for theirs: the training can start again sooner."""
    seconds = standstill.waiting_s(agents)
    if seconds > max(standstill.PATIENCE_S, standstill.STEPS * step_s):
        agents.give_up(f"the ranks of the other hosts have waited for {seconds:.0f} s")


def _priority(entry: tuple[HostAgent, RoundFault]) -> int:
    """Return 0 for the end of a host or container or a full disk, 1 for a killed rank, 2 for faults that may follow."""
    agent, fault = entry
    if fault.kind in (*FAULTS_OF_HOSTS, "container"):
        return 0
    killed = fault.rank is not None and agent.started.exits.get(fault.rank, {}).get("signal")
    return 1 if killed and fault.kind == "crash" else 2


def _take(agent: HostAgent, message: Message, tracker: Tracker) -> RoundFault | None:
    kind = message["type"]
    if kind != "lost":  # what follows says for how long
        since_ms, agent.heard_ms = agent.heard_ms, now_ms()
    if kind == "back":
        agent.silences.append(HostSilence(agent.name, since_ms, agent.heard_ms))
    elif kind == "perflog":
        _take_event(agent, message, tracker)
    elif kind in ("exit", "over"):
        agent.started.take_exits(message)
    elif kind == "beat":
        for slow, ratio in message["slow"].items():
            agent.started.slow[slow] = max(ratio, agent.started.slow.get(slow, 0.0))
        agent.started.beats.update(message.get("ranks") or {})
    elif kind == "warning":
        agent.warnings.append(f"{agent.name}: {message['sentence']}")
    elif kind == "fault":
        return RoundFault(message["kind"], agent.name, message.get("rank"), message["sentence"])
    elif kind == "gone" and not agent.over:
        if agent.lost:
            return RoundFault("lost", agent.name, None, f"{agent.name} is lost and did not come back: {agent.gone}")
        return RoundFault("agent", agent.name, None, f"the agent on {agent.name} is gone: {agent.gone}")
    return None


def _note(agent: HostAgent, message: Message, tracker: Tracker) -> None:
    """Note what a message says about the progress of the round."""
    kind = message["type"]
    if kind == "perflog" and message["rank"] == 0:
        note("progress", progress=tracker.now)
    elif kind == "lines":
        for line in message["lines"]:
            note("log", rank=message["rank"], text=line)
    elif kind == "beat" and message.get("ranks"):
        note("host", host=agent.name, values={"ranks": message["ranks"], "slow": message["slow"]})
    elif kind == "samples":
        note("host", host=agent.name, values={"samples": {part: message[part] for part in ("host", "devices")}})


def _take_event(agent: HostAgent, message: Message, tracker: Tracker) -> None:
    rank, event, value = message["rank"], message["event"], message.get("value") or {}
    if event == events.FAILED:
        agent.started.failed.setdefault(rank, message)
    if rank == 0:
        tracker.take(event, value, message["time_ms"] - round(agent.started.clock_offset_s * 1000))


def _with_details(agent: HostAgent, fault: RoundFault) -> RoundFault:
    """Return the fault with the rank's error and its last lines, which may arrive after the fault."""
    if fault.rank is None:
        return fault
    started = agent.started
    lines = tuple(started.exits.get(fault.rank, {}).get("last_lines") or ())
    sentence = fault.sentence
    error = "{type}: {error}".format(**{"type": "", "error": "", **started.failed.get(fault.rank, {}).get("value", {})})
    if error != ": " and error.partition("\n")[0][:100] not in sentence:  # the agent cuts a long one
        sentence = f"{sentence}: {error}"
    return replace(fault, sentence=sentence, last_lines=lines)


def ranks(agent: HostAgent, plan: StoredPlan) -> range:
    first = agent.noderank * plan.case.nproc
    return range(first, first + plan.case.nproc)


def unfinished(agents: Sequence[HostAgent], plan: StoredPlan) -> RoundFault | None:
    """Return a fault for the first rank without a FINISHED event, whatever its exit code; None if all have one."""
    for agent in agents:
        for rank in ranks(agent, plan):
            if rank not in agent.started.finished:
                lines = tuple(agent.started.exits.get(rank, {}).get("last_lines") or ())
                sentence = f"rank {rank} ended without a {events.FINISHED} line"
                return RoundFault("unfinished", agent.name, rank, sentence, lines)
    return None
