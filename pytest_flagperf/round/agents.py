"""The agents of a round, one per host, as one stream of what they say."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_flagperf.cluster import Channel, Host, HostError, Message

# An agent says something every second; one that is silent for so long is gone or stuck.
SILENCE_S = 60.0
# What an agent may need to end its ranks beyond the grace it gives them.
MARGIN_S = 10.0

_BOOT = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('flagperf_driver.node.agent', run_name='__main__', alter_sys=True)"
)


def boot(python: str, code_root: str) -> list[str]:
    """An agent's argv: isolated, so that neither the current folder nor site-packages is on its path."""
    return [python, "-I", "-S", "-c", _BOOT, code_root]


@dataclass
class Agent:
    """One host's agent, and what it has said so far that the round's end is made of."""

    host: Host
    noderank: int
    channel: Channel
    by_launcher: bool = False  # one process that stands for several ranks
    exits: dict[int, Message] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    failed: dict[int, Message] = field(default_factory=dict)
    ended: bool = False  # it said so
    gone: bool = False  # nothing more will come


class Agents:
    """All agents of a round, from their start to the end of the last."""

    def __init__(self) -> None:
        self.all: list[Agent] = []
        self._said: queue.SimpleQueue[tuple[Agent, Message | None]] = queue.SimpleQueue()
        self._pumps: list[threading.Thread] = []

    def start(self, host: Host, noderank: int, argv: Sequence[str], hold: Sequence[int], task: Message) -> None:
        by_launcher = len(task["follow"]) > len(task["ranks"])
        agent = Agent(host, noderank, host.open(argv, hold=hold), by_launcher)
        self.all.append(agent)
        pump = threading.Thread(target=self._pump, args=(agent,), name=f"agent of {host.name}", daemon=True)
        self._pumps.append(pump)
        pump.start()
        agent.channel.send(task)

    def messages(self, patience_s: float | None = None) -> Iterator[tuple[Agent, dict[str, Any]]]:
        """What they say, until none will say more; TimeoutError where nothing at all comes for too long."""
        while not all(agent.gone for agent in self.all):
            try:
                agent, message = self._said.get(timeout=patience_s or SILENCE_S + MARGIN_S)
            except queue.Empty:
                raise TimeoutError("no agent says anything any more") from None
            if message is None:
                agent.gone = True
                message = {"type": "gone"}
            yield agent, dict(message)

    def stop(self, reason: str) -> None:
        """Ask all to end their ranks; one that cannot be asked is as good as gone and ends them by itself."""
        for agent in self.all:
            if not agent.gone:
                try:
                    agent.channel.send({"op": "stop", "reason": reason})
                except HostError:
                    continue

    def close(self, timeout_s: float) -> None:
        """No agent outlives this, and no rank outlives its agent."""
        for agent in self.all:
            agent.channel.close(timeout_s)
        for pump in self._pumps:
            pump.join(timeout_s)

    def _pump(self, agent: Agent) -> None:
        try:
            while (message := agent.channel.receive(SILENCE_S)) is not None:
                self._said.put((agent, message))
        except (TimeoutError, HostError, OSError, ValueError) as error:
            self._said.put((agent, {"type": "silent", "why": str(error)}))
        finally:
            self._said.put((agent, None))
