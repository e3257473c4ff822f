"""One round of a case, from a plan to what is left of it on disk: read it top to bottom."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf import stored
from pytest_flagperf.hosts import HostError, Message
from pytest_flagperf.hosts.deploy import pack, sweep
from pytest_flagperf.plan import Plan
from pytest_flagperf.runtime import Interpreter

from .agents import Agent, Agents
from .collect import Missing, collect
from .orders import NO_OPTIONS, RoundOptions, Show, make_orders, read_plan, write_inputs
from .watch import Audience, Fault, Listener, ranks, start_tracker, unfinished, watch

SCHEMA = 1


@dataclass(frozen=True)
class RoundEnd:
    """How a round ended: what round.json says."""

    directory: Path
    state: str  # finished, failed or interrupted
    fault: Fault | None
    started_ms: int
    ended_ms: int
    seconds: float | None = None
    """From start to end, by a clock that is never set; None where another controller started the round."""
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
    agents: Agents,
    interpreters: Mapping[str, Interpreter],
    listener: Listener = lambda _: None,
    options: RoundOptions = NO_OPTIONS,
) -> RoundEnd:
    """Run it to its end, whatever that is, and leave no process; a KeyboardInterrupt passes on afterwards.

    The agents hold devices on every host. Written into ``directory``: plan.json, case.json, round.json and the
    hosts' logs.
    """
    started_ms, begin = _now_ms(), _clock_s()
    # A rank's log repeats the token, so that a log of another round is not taken for this one's.
    token = secrets.token_hex(8)

    def start() -> None:
        orders = make_orders(plan, token, round_number, agents.all, interpreters, options)
        write_inputs(plan, token, round_number, directory, agents.all, orders, interpreters, options)
        agents.start(orders)

    audience = Audience(listener, options.show)
    return _to_the_end(agents, directory, plan.to_json(), round_number, started_ms, begin, audience, start)


def follow_round(
    directory: Path,
    agents: Agents,
    listener: Listener = lambda _: None,
    show: Show | None = None,
    *,
    end_because: str | None = None,
) -> RoundEnd:
    """Take a round to its end that another controller started; ``agents`` are its agents.

    With a reason to end it, that is done at once, and is its fault.
    """
    described = read_plan(directory)
    started_ms = int((directory / "plan.json").stat().st_mtime * 1000)

    def started() -> None:
        for agent in agents.all:
            agent.by_launcher = described["launcher"] != "env"
            # What they told the other controller is not told again; their logs have it.
            agent.finished.update(ranks(agent, described))
        if end_because is not None:
            raise HostError(end_because)

    number = described["round"]
    return _to_the_end(agents, directory, described, number, started_ms, None, Audience(listener, show), started)


def _to_the_end(
    agents: Agents,
    directory: Path,
    described: Mapping[str, Any],
    round_number: int,
    started_ms: int,
    begin: float | None,
    audience: Audience,
    start: Callable[[], None],
) -> RoundEnd:
    tracker = start_tracker(described, round_number, started_ms)
    fault, state = None, "failed"
    try:
        start()
        fault = watch(agents, tracker, audience) or unfinished(agents.all, described)
        state = "failed" if fault else "finished"
    except (HostError, TimeoutError) as error:
        fault = Fault("agent", "", None, str(error))
    except BaseException as error:
        fault = Fault("interrupted", "", None, f"interrupted by {type(error).__name__} {error}".strip())
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
        end = RoundEnd(directory, state, fault, started_ms, _now_ms(), seconds, ends, swept, missing, warnings)
        _write_end(end)
    return end


# -- after the end ----------------------------------------------------------------------------------------


def _write_end(end: RoundEnd) -> None:
    """Write round.json; of an interrupted round the interrupt is raised, not that its end could not be written."""
    try:
        stored.write(end.directory / "round.json", end.to_json())
    except stored.WriteError:
        if end.state != "interrupted":
            raise


def missing_logs(directory: Path) -> list[dict[str, Any]]:
    """Return the logs that are still on a host, as round.json lists them; FormatError if it cannot be read."""
    path = directory / "round.json"
    end = {"missing": [], **stored.read(path)}
    stored.need(end, {"state": str}, str(path))
    return stored.listed(end, "missing", {"host": str, "noderank": int, "log_dir": str, "why": str}, str(path))


def write_missing(directory: Path, missing: Sequence[Mapping[str, Any]], warnings: Sequence[str] = ()) -> None:
    """Replace the list of missing logs in round.json, and add warnings."""
    end = stored.read(directory / "round.json")
    all_warnings = [*(end.get("warnings") or ()), *warnings]
    stored.write(directory / "round.json", {**end, "missing": missing, "warnings": all_warnings})


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


def _host_ends(agents: Agents) -> tuple[Message, ...]:
    return tuple(
        {
            "name": agent.name,
            "noderank": agent.noderank,
            "ranks": [
                {key: exit_.get(key) for key in ("rank", "code", "signal", "cause")}
                for _, exit_ in sorted(agent.exits.items())
            ],
        }
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
