"""One round of a case, from the plan to the round's files on disk, in the order in which it runs."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pytest_flagperf import stored
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.deploy import pack, sweep
from pytest_flagperf.plan import Plan
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import (
    HostEnd,
    RankEnd,
    RoundDir,
    RoundFault,
    RoundRecord,
    begun_ms,
    first_training,
)

from .agents import Agents, HostAgent
from .collect import collect
from .orders import NO_OPTIONS, Explain, RoundOptions, make_orders, unchanged, write_inputs
from .watch import ranks, start_tracker, unfinished, watch

_log = logging.getLogger("flagperf.rounds")


def run_round(
    plan: Plan,
    round_number: int,
    directory: Path,
    *,
    agents: Agents,
    interpreters: Mapping[str, Interpreter],
    live: Live,
    options: RoundOptions = NO_OPTIONS,
) -> RoundRecord:
    """Run a round to its end, good or bad, and leave no process; a KeyboardInterrupt is raised again afterwards.

    The agents hold devices on every host. The round writes plan.json, case.json, round.json and the hosts' logs into
    ``directory``.
    """
    started_ms, begin = _now_ms(), _clock_s()
    stored_round = RoundDir(directory)
    identity = _identity(stored_round)
    begun = {**plan.to_json(), **identity, "round": round_number, "seed": plan.seed(round_number), "hosts": []}

    def start() -> None:
        for agent in agents.all:
            _log.info("%s: %s: devices %s", stored_round.label, agent.name, list(agent.devices))
        orders = make_orders(plan, identity, round_number, agents.all, interpreters, options)
        write_inputs(plan, identity, round_number, stored_round, agents.all, orders, interpreters, options)
        agents.start(orders)

    stored_plan = StoredPlan.from_json(stored.to_json_types(begun), f"case {plan.case}")
    return _run_to_end(agents, stored_round, stored_plan, live, start, options.explain, started_ms, begin)


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
    live: Live,
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
            # FINISHED events that the other controller received are not sent again; the logs have them.
            agent.finished.update(ranks(agent, plan))
        if end_because is not None:
            raise HostError(end_because)

    return _run_to_end(agents, stored_round, plan, live, started, explain, begun_ms(stored_round))


def _run_to_end(
    agents: Agents,
    directory: RoundDir,
    plan: StoredPlan,
    live: Live,
    start: Callable[[], None],
    explain: Explain,
    started_ms: int,
    begin: float | None = None,
) -> RoundRecord:
    tracker = start_tracker(plan, started_ms)
    fault, state = None, "failed"
    try:
        start()
        fault = watch(agents, tracker, live) or unfinished(agents.all, plan)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = RoundFault("agent", "", None, str(error))
    except BaseException as error:
        fault = RoundFault("interrupted", "", None, f"interrupted by {type(error).__name__} {error}".strip())
        state = "interrupted"
        raise
    finally:
        _stop(agents, "the round was interrupted" if state == "interrupted" else "the round is over")
        # Processes of a dead agent may still write logs: end them before the logs are fetched.
        gone = [agent for agent in agents.all if agent.gone]
        swept = _sweep(gone)
        missing = collect(agents.all, agents.limits, agents.passing)
        agents.dismiss(keep=[logs.host for logs in missing])
        swept += _sweep(agent for agent in agents.all if agent not in gone)
        if fault is not None and state == "failed":
            fault = explain(fault)
        seconds = None if begin is None else round(_clock_s() - begin, 3)
        ends, warnings = _host_ends(agents), _warnings(agents)
        end = RoundRecord(state, fault, started_ms, _now_ms(), seconds, ends, swept, missing, warnings)
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
            if message["type"] == "exit":
                agent.exits[message["rank"]] = message
    except TimeoutError:
        pass  # the lease ends the ranks


def _sweep(agents: Iterable[HostAgent]) -> tuple[str, ...]:
    """End and remove processes and containers of agents that did not end in order; return their names."""
    return tuple(line for agent in agents if agent.started and not agent.over for line in _sweep_host(agent))


def _sweep_host(agent: HostAgent) -> Iterator[str]:
    if agent.lost:
        return  # unreachable: the agent ends its ranks when its lease is over, or when it is reached again
    try:
        swept, problems = sweep(agent.host, agent.code or pack({}), agent.log_dir, agent.docker)
        yield from swept
        agent.warnings += [f"{agent.name}: {problem}" for problem in problems]
    except HostError as error:
        agent.warnings.append(f"{agent.name} could not be checked for leftovers of the round: {error}")


def _host_ends(agents: Agents) -> tuple[HostEnd, ...]:
    return tuple(
        HostEnd(
            agent.noderank,
            agent.name,
            tuple(
                RankEnd(rank, exit_.get("code"), exit_.get("signal"), exit_.get("cause"))
                for rank, exit_ in sorted(agent.exits.items())
            ),
        )
        for agent in agents.all
    )


def _warnings(agents: Agents) -> tuple[str, ...]:
    slow = (
        f"rank {rank} on {agent.name} was slow: its steps took {ratio:.2g} times the median of the host's ranks"
        for agent in agents.all
        for rank, ratio in agent.slow.items()
    )
    return (*(line for agent in agents.all for line in agent.warnings), *slow)


def _clock_s() -> float:
    """Return the seconds of a clock that also counts while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
