"""``--drill``: faults that a run strikes on purpose, one after the other, to measure what each costs its training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from flagperf_driver import events
from flagperf_driver.node.agent.timer import now_ms
from pytest_flagperf.engines import OK, Finding
from pytest_flagperf.hosts import HostError, Message
from pytest_flagperf.hosts.stream_host import StreamHost
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.stored.plan import HOST, LINK, RANK
from pytest_flagperf.stored.round_dir import RoundDir, StruckFault, earlier_tries, has_readable_record

from .agents import Agents, HostAgent
from .preflight.device_rules import FOREIGN
from .preflight.host_rules import LOAD

LINK_CUT_S = 20.0
"""How long a link is cut: longer than the silence after which a host is lost, shorter than what ends a training."""
HOST_AWAY_S = 60.0
"""How long a struck host cannot be reached, as if it started again."""


class Drill:
    """The faults of one round: those of ``--drill`` that no earlier start of its training had.

    The next fault strikes after a checkpoint of this start, at a step drawn from as many as led to the checkpoint.
    """

    def __init__(self, faults: Sequence[str], directory: RoundDir) -> None:
        earlier = sum(len(one.read_record().drill) for one in earlier_tries(directory) if has_readable_record(one))
        self.struck: list[StruckFault] = []
        self._left = list(faults[earlier:])
        self._since: int | None = None
        self._at: int | None = None
        self._hit: HostAgent | None = None  # until the fault is noticed

    def take(self, agents: Agents, agent: HostAgent, message: Message, step: int) -> None:
        """Take a message of an agent; ``step`` is the training's. Strike if it is time, note when that is noticed."""
        kind = message["type"]
        if self._hit is not None:
            if kind in ("fault", "gone") or (kind == "lost" and agent is self._hit):
                self.struck[-1] = replace(self.struck[-1], noticed_ms=now_ms())
                self._hit = None
        elif kind == "perflog" and message["rank"] == 0 and self._left:
            self._wait_for_moment(message["event"], step)
            if self._at is not None and step >= self._at:
                self._strike(agents, step)

    def _wait_for_moment(self, event: str, step: int) -> None:
        if event == events.STEP_END and self._since is None:
            self._since = step - 1
        elif event == events.CHECKPOINT and self._since is not None and self._at is None:
            self._at = step + random.randint(1, max(step - self._since, 1))

    def _strike(self, agents: Agents, step: int) -> None:
        kind, hit, rank = self._left.pop(0), random.choice(agents.all), None
        self._since = self._at = None
        struck_ms = now_ms()
        if kind == RANK:
            nproc = len(hit.started.devices)
            rank = hit.noderank * nproc + random.randrange(nproc)
        self.struck.append(StruckFault(kind, hit.name, rank, step, struck_ms))
        note("line", text=f"drill: {self.struck[-1].what} at step {step:,}")
        self._hit = hit
        if kind != LINK:
            with suppress(HostError):  # it was lost a moment ago
                hit.send({"op": "strike", "rank": rank})
        if kind != RANK and isinstance(hit.host, StreamHost):
            hit.host.cut(HOST_AWAY_S if kind == HOST else LINK_CUT_S)


def refuse_drill(findings: Iterable[Finding]) -> None:
    """Raise Problems if others use a host's cores or devices."""
    others = [one for one in findings if one.kind in (LOAD, FOREIGN) and one.level != OK]
    if others:
        expected = "expected hosts of its own; --drill-here strikes there, and touches no process of others"
        raise Problems(f"--drill: {one.host}: {one.sentence}; {expected}" for one in others)
