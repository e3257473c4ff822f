"""Messages of agents at moments that are hard to produce with real agents."""

import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flagperf_driver.heartbeat import EVALUATE, INIT, TRAIN
from flagperf_driver.node.folder import EVENTS
from pytest_flagperf.engines.agents import agents as agents_module
from pytest_flagperf.engines.agents.agents import Acquisition, Agents, DeviceRequest, Greeted, HostAgent, Started
from pytest_flagperf.engines.agents.drill import Drill
from pytest_flagperf.engines.agents.round_messages import _with_details, first_fault, start_tracker
from pytest_flagperf.hosts import HostError, HostLost, Message
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.stored import to_json_types
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault
from tests.helpers.rounds import Away, tiny_plan
from tests.helpers.waiting import until


class FakeChannel:
    """A connection whose other end is the test."""

    def __init__(self, *messages: Message | Exception | None) -> None:
        self.incoming: queue.SimpleQueue[Message | Exception | None] = queue.SimpleQueue()
        self.heard: list[Message] = []
        self.refuses: Exception | None = None
        for message in messages:
            self.incoming.put(message)

    def on_arrival(self, call: Callable[[], None]) -> bool:
        return False

    def send(self, message: Message) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.heard.append(message)

    def receive(self, timeout_s: float) -> Message | None:
        try:
            word = self.incoming.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(word, Exception):
            raise word
        return word

    def close(self, timeout_s: float = 5.0) -> int | None:
        self.incoming.put(None)
        return 0

    def error_output(self) -> str:
        return "Traceback: it broke"


def agent_on(line: FakeChannel, tmp_path: Path) -> HostAgent:
    return HostAgent(LocalHost("h1"), 0, tmp_path, line, 5.0, state=Started("/there"))


def test_messages_before_the_end_are_received_after_it(tmp_path: Path) -> None:
    agents = Agents()
    agent = agent_on(FakeChannel(), tmp_path)
    agents.all.append(agent)

    class Late(queue.SimpleQueue):  # type: ignore[type-arg]
        """A queue whose messages arrive just after it was empty."""

        def empty(self) -> bool:
            found = super().empty()
            for kind in () if agent.over else ("fault", "over"):
                agents._take(agent, {"type": kind})
            return found

    agents._messages = Late()
    threading.Timer(0.1, agents._messages.empty).start()
    assert [message["type"] for _, message in agents.messages()] == ["fault", "over"]


def test_what_an_agent_left_in_its_file_is_read(tmp_path: Path) -> None:
    lines = [{"type": "warning", "sentence": word, "seq": number} for number, word in enumerate("abc", 1)]
    (tmp_path / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    agent = agent_on(FakeChannel(), tmp_path)
    agent.state, agent.seq = Started(str(tmp_path)), 1
    with Agents() as agents:
        agents._read_left(agent)
        assert [agents._messages.get_nowait()[1]["sentence"] for _ in "bc"] == ["b", "c"]
    agent.host.close()


def test_an_ended_agents_last_messages_arrive(tmp_path: Path) -> None:
    line = FakeChannel({"type": "beat", "seq": 1}, {"type": "fault", "seq": 2}, None)
    line.refuses = HostError("h1: the program no longer reads its input: Broken pipe")
    agents = Agents()
    agents.join(agent_on(line, tmp_path))
    received = [message for _, message in agents.messages()]
    assert [message["type"] for message in received] == ["beat", "fault", "gone"]
    assert received[-1]["why"] == "Traceback: it broke"


@pytest.mark.parametrize(
    ("tell", "missed"),
    [
        (lambda agents: agents.stop("a fault"), {"op": "stop", "reason": "a fault"}),
        (lambda agents: setattr(agents, "_closing", True), {"op": "leave", "remove": False}),
        (lambda agents: setattr(agents.all[0], "removed", True), {"op": "leave", "remove": True}),
    ],
)
def test_orders_are_sent_again_to_a_reconnected_agent(
    tell: Callable[[Agents], None], missed: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = FakeChannel(HostLost("cut")), FakeChannel()
    first.refuses = HostLost("cut")
    agents = Agents()

    def connect_to_agent(*_: Any) -> tuple[FakeChannel, bool]:
        tell(agents)
        return second, True

    monkeypatch.setattr(agents_module, "connect_to_agent", connect_to_agent)
    agents.join(agent_on(first, tmp_path))
    second.incoming.put({"type": "over", "seq": 1})
    kinds = [message["type"] for _, message in agents.messages()]
    heard = list(second.heard)
    agents.dismiss()
    assert agents.all[0].removed or kinds == ["lost", "back", "over"]
    assert missed in heard


def test_a_lost_order_to_start_the_ranks_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "connect_to_agent", lambda *_: (FakeChannel(), False))
    agents = Agents()
    agents.join(agent_on(FakeChannel(HostLost("cut")), tmp_path))
    *_, last = [message for _, message in agents.messages()]
    assert last["why"] == "cut; after the host came back: the order to start the ranks was lost"


def test_a_host_lost_while_a_case_waits_is_excluded_and_the_others_are_used(tmp_path: Path) -> None:
    hosts = (Away("h1"), Away("h2"))
    pool, agents = HostPool(hosts), Agents()
    words: tuple[Message | Exception, ...] = (HostLost("h1: cut"), {"type": "busy", "holders": ["host is held by eve"]})
    for host, word in zip(hosts, words, strict=True):
        agents.join(HostAgent(host, 0, tmp_path, FakeChannel(word), 5.0, state=Greeted("/there", cpus=(0,))))
    request = DeviceRequest(2, 1, None, False, {"case": "a:b:c:1:1:1"}, "name", tmp_path, 5.0)
    assert Acquisition(pool, cast("Any", None), request, agents).lease_all([*agents.all]) == ["h2: host is held by eve"]
    assert (pool.usable, list(pool.excluded)) == (hosts[1:], ["h1"])
    assert [agent.name for agent in agents.all] == ["h2"]
    agents.dismiss()


def test_a_wait_is_counted_and_reported_once_for_each_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += 10.0

    answers = iter([["host is held by eve"]] * 7 + [["host is held by bob"]] * 2 + [[]] * 2)
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path))
    monkeypatch.setattr(Acquisition, "_attempt", lambda *_: next(answers))
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    request, code = DeviceRequest(1, 1, None, False, {"case": "a:b:c:1:1:1"}, "name", tmp_path, 5.0), cast("Any", None)
    assert Acquisition(HostPool((LocalHost(),)), code, request, Agents()).run() == 90.0
    assert notes == [f"a:b:c:1:1:1 waits: host is held by {holder}\n" for holder in ("eve", "bob")]
    assert Acquisition(HostPool((LocalHost(),)), code, request, Agents()).run() == 0.0  # the control: a free host


@pytest.mark.parametrize(
    ("hanging", "named"),
    [
        ({"step": 11, "phase": TRAIN}, (323, "h40", "hang")),
        ({"step": 12, "phase": EVALUATE}, (323, "h40", "hang")),
        ({"step": 0, "phase": INIT}, (323, "h40", "init_timeout")),
        (None, (323, "h40", "init_timeout")),
        ({"step": 12, "phase": TRAIN}, (0, "h0", "hang")),
    ],
    ids=["behind", "in another phase", "before its first step", "before its first beat", "all alike"],
)
def test_of_many_hosts_the_rank_that_hangs_is_named_and_not_the_first_report(
    hanging: Message | None, named: tuple[int, str, str], tmp_path: Path
) -> None:
    facts = {**tiny_plan(nproc=8, nnodes=64).to_json(), "round": 1, "seed": 1, "hosts": []}
    plan = StoredPlan.from_json(to_json_types(facts), "plan")
    agents = Agents()
    for number in range(64):
        beats = {str(8 * number + local): {"step": 12, "phase": TRAIN, "idle_s": 60.5} for local in range(8)}
        beats = {rank: {**beat, **(hanging or {})} if rank == "323" else beat for rank, beat in beats.items()}
        if hanging is None:
            beats.pop("323", None)
        line = FakeChannel({"type": "beat", "seq": 1, "ranks": beats, "slow": {}})
        line.incoming.put({"type": "fault", "seq": 2, "kind": "hang", "rank": 8 * number, "sentence": "first"})
        line.incoming.put({"type": "over", "seq": 3})
        agents.all.append(HostAgent(LocalHost(f"h{number}"), number, tmp_path, line, 5.0, state=Started("/x")))
    for kind in range(3):  # all beats arrive before the first report
        for agent in agents.all:
            message = agent.channel.receive(0)
            assert message is not None, kind
            agents._take(agent, message)
    fault = first_fault(agents, start_tracker(plan, 0), plan, Drill((), RoundDir(Path())))
    assert fault is not None
    assert (fault.rank, fault.host, fault.kind) == named
    assert fault.sentence.endswith("first")


def test_a_long_error_is_said_once(tmp_path: Path) -> None:
    error, agent = f"the server ended {'x' * 900}", agent_on(FakeChannel(), tmp_path)
    agent.started.failed[0] = {"value": {"type": "ServerError", "error": error}}
    cut = f"rank 0 ended with exit code 1: ServerError: {error[:400]}..."
    for sentence, expected in ((cut, cut), ("rank 0 ended", f"rank 0 ended: ServerError: {error}")):
        assert _with_details(agent, RoundFault("crash", "h", 0, sentence, ())).sentence == expected


def test_an_agent_that_floods_or_breaks_does_not_keep_the_messages_of_others(tmp_path: Path) -> None:
    class Flood(FakeChannel):
        left = 5000

        def receive(self, timeout_s: float) -> Message | None:
            self.left -= 1
            return {"type": "beat"} if self.left and not other.over else None

    flood = Flood()
    other = agent_on(FakeChannel({"type": "over"}, None), tmp_path)
    with Agents() as agents:
        broken = agent_on(FakeChannel(RecursionError("too deep")), tmp_path)
        for agent in (agent_on(flood, tmp_path), broken, other):
            agents.join(agent)
        until(lambda: all(agent.stream_ended for agent in agents.all), "the messages of all")
    assert flood.left > 0
    assert broken.gone == "RecursionError: too deep"
