"""Whether an unreachable host is gone, or only its link to the controller: the ranks of the other hosts know.

In a synchronous training they wait for the ranks of a host that is gone. While they make steps, the host trains.
"""

from __future__ import annotations

from flagperf_driver.heartbeat import TRAIN

from .agents import Agents

PATIENCE_S, STEPS = 45.0, 5
"""The ranks of the other hosts have waited so long, and for the time of so many steps."""


def waiting_s(agents: Agents) -> float:
    """Return for how long all ranks that are furthest behind have been silent within the training.

    Only ranks of reachable hosts count; 0 if a host is evaluating or saving, has not begun, or no host is lost.
    """
    running = [agent for agent in agents.all if agent.is_started and not agent.over and not agent.gone]
    there = [agent for agent in running if agent.lost is None]
    if not there or len(there) == len(running) or not all(agent.started.beats for agent in there):
        return 0.0
    of_ranks = [beat for agent in there for beat in agent.started.beats.values()]
    behind = min(beat["step"] for beat in of_ranks)
    waiting = [beat for beat in of_ranks if beat["step"] == behind]
    if behind < 1 or any(beat["phase"] != TRAIN for beat in waiting):
        return 0.0
    return float(min(beat["idle_s"] for beat in waiting))
