"""What a round takes from what its agents say, at the moments that are hard to meet with real ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.engines.agents import agents as agents_module
from pytest_flagperf.engines.agents import lost_hosts
from pytest_flagperf.engines.agents.acquire import DeviceRequest, _lease_all
from pytest_flagperf.engines.agents.agents import Agents, HostAgent
from pytest_flagperf.hosts import HostError, HostLost, Message
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost


class Line:
    """A conversation whose other end is the test."""

    def __init__(self, *said: Message | Exception | None) -> None:
        self.said: queue.SimpleQueue[Message | Exception | None] = queue.SimpleQueue()
        self.heard: list[Message] = []
        self.refuses: Exception | None = None
        for each in said:
            self.said.put(each)

    def send(self, message: Message) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.heard.append(message)

    def receive(self, timeout_s: float) -> Message | None:
        try:
            word = self.said.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(word, Exception):
            raise word
        return word

    def close(self, timeout_s: float = 5.0) -> int | None:
        self.said.put(None)
        return 0

    def complaint(self) -> str:
        return "Traceback: it broke"


def agent_on(line: Line, tmp_path: Path) -> HostAgent:
    return HostAgent(LocalHost("h1"), 0, tmp_path, line, 5.0, log_dir="/there", started=True)


def test_what_was_said_before_an_end_is_heard_whenever_one_looks(tmp_path: Path) -> None:
    agents = Agents()
    agent = agent_on(Line(), tmp_path)
    agents.all.append(agent)

    class Late(queue.SimpleQueue):  # type: ignore[type-arg]
        """All of it comes just when the queue was found to be empty."""

        def empty(self) -> bool:
            found = super().empty()
            for kind in () if agent.over else ("fault", "over"):
                agents._take(agent, {"type": kind})
            return found

    agents._messages = Late()
    threading.Timer(0.1, agents._messages.empty).start()
    assert [message["type"] for _, message in agents.messages()] == ["fault", "over"]


def test_the_last_words_of_an_agent_that_ended_are_heard_though_it_hears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_module, "_ACK_S", 0.0)
    line = Line({"type": "beat", "seq": 1}, {"type": "fault", "seq": 2}, None)
    line.refuses = HostError("h1: the program no longer reads its input: Broken pipe")
    agents = Agents()
    agents.join(agent_on(line, tmp_path))
    told = [message for _, message in agents.messages()]
    assert [message["type"] for message in told] == ["beat", "fault", "gone"]
    assert told[-1]["why"] == "Traceback: it broke"


@pytest.mark.parametrize(
    ("tell", "missed"),
    [
        (lambda agents: agents.stop("a fault"), {"op": "stop", "reason": "a fault"}),
        (lambda agents: setattr(agents, "_closing", True), {"op": "leave", "remove": False}),
        (lambda agents: setattr(agents.all[0], "removed", True), {"op": "leave", "remove": True}),
    ],
)
def test_an_agent_that_comes_back_is_told_what_it_missed(
    tell: Callable[[Agents], None], missed: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Line(HostLost("cut")), Line()
    first.refuses = HostLost("cut")
    agents = Agents()

    def attached(*_: Any) -> Line:
        tell(agents)
        return second

    monkeypatch.setattr(lost_hosts, "attached", attached)
    agents.join(agent_on(first, tmp_path))
    second.said.put({"type": "over", "seq": 1})
    kinds = [message["type"] for _, message in agents.messages()]
    heard = list(second.heard)
    agents.dismiss()
    assert agents.all[0].removed or kinds == ["lost", "back", "over"]
    assert missed in heard


class Away(LocalHost):
    """A host elsewhere that cannot be reached again."""

    here = False

    def reconnect(self) -> None:
        raise HostLost(f"{self.name}: no answer")


def test_a_host_that_is_lost_while_a_case_waits_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    hosts = (Away("h1"), Away("h2"))
    pool, agents = HostPool(hosts), Agents()
    words: tuple[Message | Exception, ...] = (HostLost("h1: cut"), {"type": "busy", "holders": ["host is held by eve"]})
    for host, word in zip(hosts, words, strict=True):
        agents.join(HostAgent(host, 0, tmp_path, Line(word), 5.0, log_dir="/there", cpus=(0,)))
    request = DeviceRequest(2, 1, None, False, {}, "name", tmp_path, 5.0)
    assert _lease_all(pool, list(agents.all), request, agents) == ["h2: host is held by eve"]
    assert (pool.usable, list(pool.excluded)) == (hosts[1:], ["h1"])
    assert [agent.name for agent in agents.all] == ["h2"]
    agents.dismiss()
