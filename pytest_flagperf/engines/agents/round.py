"""One round of a case, from a plan to what is left of it on disk: read it top to bottom."""

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
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round import HostEnd, RankEnd, RoundDir, RoundFault, RoundRecord, begun_ms

from .agents import Agent, Agents
from .collect import collect
from .orders import NO_OPTIONS, RoundOptions, Show, make_orders, write_inputs
from .watch import Audience, Listener, ranks, start_tracker, unfinished, watch

_log = logging.getLogger("flagperf.rounds")


def run_round(
    plan: Plan,
    round_number: int,
    directory: Path,
    *,
    agents: Agents,
    interpreters: Mapping[str, Interpreter],
    listener: Listener = lambda _: None,
    options: RoundOptions = NO_OPTIONS,
) -> RoundRecord:
    """Run it to its end, whatever that is, and leave no process; a KeyboardInterrupt passes on afterwards.

    The agents hold devices on every host. Written into ``directory``: plan.json, case.json, round.json and the
    hosts' logs.
    """
    started_ms, begin = _now_ms(), _clock_s()
    # A rank's log repeats the token, so that a log of another round is not taken for this one's.
    token = secrets.token_hex(8)
    begun = {**plan.to_json(), "token": token, "round": round_number, "seed": plan.seed(round_number), "hosts": []}
    left = RoundDir(directory)

    def start() -> None:
        for agent in agents.all:
            _log.info("%s: %s: devices %s", left.label, agent.name, list(agent.devices))
        orders = make_orders(plan, token, round_number, agents.all, interpreters, options)
        write_inputs(plan, token, round_number, left, agents.all, orders, interpreters, options)
        agents.start(orders)

    stored_plan = StoredPlan.from_json(stored.sayable(begun), f"case {plan.case}")
    return _to_the_end(agents, left, stored_plan, started_ms, begin, Audience(listener, options.show), start)


def follow_round(
    directory: Path,
    agents: Agents,
    listener: Listener = lambda _: None,
    show: Show | None = None,
    *,
    end_because: str | None = None,
) -> RoundRecord:
    """Take a round to its end that another controller started; ``agents`` holds its agents.

    With a reason to end it, that is done at once, and is its fault.
    """
    left = RoundDir(directory)
    plan = left.read_plan()

    def started() -> None:
        for agent in agents.all:
            agent.by_launcher = plan.launcher != "env"
            # What they told the other controller is not told again; their logs have it.
            agent.finished.update(ranks(agent, plan))
        if end_because is not None:
            raise HostError(end_because)

    return _to_the_end(agents, left, plan, begun_ms(left), None, Audience(listener, show), started)


def _to_the_end(
    agents: Agents,
    directory: RoundDir,
    plan: StoredPlan,
    started_ms: int,
    begin: float | None,
    audience: Audience,
    start: Callable[[], None],
) -> RoundRecord:
    tracker = start_tracker(plan, started_ms)
    fault, state = None, "failed"
    try:
        start()
        fault = watch(agents, tracker, audience) or unfinished(agents.all, plan)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = RoundFault("agent", "", None, str(error))
    except BaseException as error:
        fault = RoundFault("interrupted", "", None, f"interrupted by {type(error).__name__} {error}".strip())
        state = "interrupted"
        raise
    finally:
        _stop(agents, "the round was interrupted" if state == "interrupted" else "the round is over")
        # Processes that a dead agent left may still write logs: they are ended before the logs are fetched.
        gone = [agent for agent in agents.all if agent.gone]
        swept = _sweep(gone)
        missing = collect(agents.all, agents.limits)
        agents.dismiss(keep=[each.host for each in missing])
        swept += _sweep(agent for agent in agents.all if agent not in gone)
        seconds = None if begin is None else round(_clock_s() - begin, 3)
        ends, warnings = _host_ends(agents), _warnings(agents)
        end = RoundRecord(state, fault, started_ms, _now_ms(), seconds, ends, swept, missing, warnings)
        _write_end(directory, end)
        _log.info("%s: %s%s", directory.label, state, f": {fault.sentence}" if fault else "")
    return end


# -- after the end ----------------------------------------------------------------------------------------


def _write_end(directory: RoundDir, end: RoundRecord) -> None:
    """Write round.json; of an interrupted round the interrupt is raised, not that its end could not be written."""
    try:
        directory.write_record(end)
    except stored.WriteError:
        if end.state != "interrupted":
            raise


def _stop(agents: Agents, reason: str) -> None:
    """Let the agents end their ranks; what they still say of exits is kept."""
    if all(agent.done for agent in agents.all):
        return
    agents.stop(reason)
    try:
        for agent, message in agents.messages():
            if message["type"] == "exit":
                agent.exits[message["rank"]] = message
    except TimeoutError:
        pass  # its lease ends them


def _sweep(agents: Iterable[Agent]) -> tuple[str, ...]:
    """What outlived its agent, where one did not end in order; there should be nothing."""
    return tuple(line for agent in agents if agent.started and not agent.over for line in _swept(agent))


def _swept(agent: Agent) -> Iterator[str]:
    if agent.lost:
        return  # out of reach; the agent there ends its ranks when its lease is over, or before, when it is asked again
    try:
        swept, problems = sweep(agent.host, agent.code or pack({}), agent.log_dir, agent.docker)
        yield from swept
        agent.warnings += [f"{agent.name}: {problem}" for problem in problems]
    except HostError as error:
        agent.warnings.append(f"{agent.name} could not be searched for what is left of the round: {error}")


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
        f"rank {rank} on {agent.name} was slow: {ratio:.2g} times as long for a step as the median of the host's ranks"
        for agent in agents.all
        for rank, ratio in agent.slow.items()
    )
    return (*(line for agent in agents.all for line in agent.warnings), *slow)


def _clock_s() -> float:
    """It goes on while this machine sleeps, as the ranks on other hosts do."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
