"""Faults of hosts and their links: the messages, and that nothing is left on the hosts."""

import json
import re
import time
from typing import Any

import pytest

from flagperf_driver import perflog
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.stored.live_record import PROGRESS, LiveFile, live_files
from tests.helpers.waiting import until
from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.plugin.conftest import Going

# Loaded by the run itself. A loss is noticed after two seconds where it takes ten; what agents tell is written down.
CONFTEST = """
import json
from pytest_flagperf.engines.agents import round_messages
from pytest_flagperf.hosts import silence, ssh

silence.PING_S, silence.LINK_S, ssh.CONNECT_S, silence.RELAY_S = 0.2, 1.0, 3.0, 1.5

take = round_messages._take

def noted(agent, message, *rest):
    with open("messages.jsonl", "a") as file:
        file.write(json.dumps([agent.name, message]) + "\\n")
    return take(agent, message, *rest)

round_messages._take = noted
{more}
"""

# One of its parts waits until the test says go; where it is about lost hosts or logs, only when there are any.
WAITING = """
import pathlib, time
from pytest_flagperf.{module} import {owner}
its_own = {owner}.{name}

def waiting(self, *what, **more):
    due = getattr(self, "_rounds_with_missing_logs", True)
    if due and (not what or not isinstance(what[0], dict) or what[0]["op"] == "collect"):
        pathlib.Path("waits").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    return its_own(self, *what, **more)

{owner}.{name} = waiting
"""


def prepare(cluster: ClusterToy, *, more: str = "", hosts: int = 2) -> list[LabHost]:
    """Reset the hosts, record the agents' messages, and detect lost hosts quickly."""
    (cluster.root / "suites/conftest.py").write_text(CONFTEST.format(more=more))
    if hosts != len(cluster.hosts):
        cluster.hosts = cluster.lab.hosts(hosts)
        cluster.settings(nodes="2x1", runtime="host")
    return cluster.hosts


def start(cluster: ClusterToy, *arguments: str) -> Going:
    """A run whose ranks all train."""
    going = cluster.start("-k", "converges", *arguments)
    going.wait_for(lambda: all(cluster.trains(host) for host in cluster.hosts[:2]), "training on all hosts")
    return going


def messages_of(cluster: ClusterToy, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """The agents' messages of a type, each with the agent's name."""
    lines = (cluster.root / "messages.jsonl").read_text().splitlines()
    return [(name, message) for name, message in map(json.loads, lines) if message["type"] == kind]


def assert_nothing_lost_or_doubled(cluster: ClusterToy) -> None:
    """Rank 0's messages are the lines of its log, each once; each rank has finished."""
    first = [one for _, one in messages_of(cluster, "perflog") if one["rank"] == 0]
    events = [(one["event"], one["value"], one["time_ms"]) for one in first]
    (path,) = cluster.toy.runs[-1].glob("*/round1/h1_noderank0/rank0.out.log")
    records = filter(None, map(perflog.parse_line, path.read_bytes().splitlines()))
    assert events == [(one.event, dict(one.value), one.time_ms) for one in records]
    assert len(events) > 30
    assert sorted(rank for _, over in messages_of(cluster, "over") for rank in over["ended_well"]) == [0, 1]


def reported_once(text: str, sentence: str) -> str:
    matches = set(re.findall(sentence, text))
    assert len(matches) == 1, f"{sentence!r} matches {matches or 'nothing'} in:\n{text}"
    return str(matches.pop())


def ranks(host: LabHost) -> list[str]:
    return [one.cmdline for one in host.processes() if "run_pretraining.py" in one.cmdline]


def test_sessions_that_are_killed_are_replaced_and_nothing_is_lost(cluster: ClusterToy) -> None:
    one, two = prepare(cluster)
    going = start(cluster, "--set=step_s=0.3")
    killed = [host.kill_sshd_sessions() for host in (one, two)]
    assert all(killed), "there was nothing to kill"
    going.wait_for(lambda: "h1 is back" in going.text and "h2 is back" in going.text, "both hosts again")
    one.kill_sshd_sessions()
    assert going.wait() == 0, going.text
    reported_once(going.text, r"h2 is lost \(h2: the connection is lost: .*\); its ranks continue for 600 s")
    assert cluster.round_json()["state"] == "finished"
    assert [line for line in cluster.round_json()["warnings"] if line == "h2 is back"] == ["h2 is back"]
    assert_nothing_lost_or_doubled(cluster)
    assert_nothing_left(cluster.hosts)


@pytest.mark.parametrize("switch", ["link", "freeze"])
def test_a_host_that_stays_away_is_named_when_its_lease_is_over(cluster: ClusterToy, switch: str) -> None:
    one, two = prepare(cluster)
    cluster.set(lease_time=2)
    going = start(cluster, "--set=step_s=2")
    if switch == "freeze":
        two.freeze()
    else:
        two.link(up=False)
    assert going.wait() == 1, going.text
    fault = cluster.round_json("alpha*")["fault"]
    assert (fault["kind"], fault["host"]) == ("lost", "h2")
    assert fault["sentence"].startswith("h2 is lost and did not come back: h2: "), fault
    assert f"round 1: {fault['sentence']}" in going.text
    (missing,) = cluster.round_json()["missing"]
    assert f"the logs of h2 are missing here; they are on the host in {missing['log_dir']}: " in cluster.page
    if switch == "freeze":
        two.thaw()
    until(lambda: not ranks(two), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one])


def test_the_host_without_power_is_the_cause_and_not_the_rank_that_complains_of_it(cluster: ClusterToy) -> None:
    one, two = prepare(cluster, more="silence.LINK_S = 4.0")
    going = start(cluster, "--set=step_s=0.8", "--set=fault=exit")
    one.power_off()
    assert going.wait() == 1, going.text
    round_json = cluster.round_json()
    assert [rank["code"] for rank in round_json["hosts"][1]["ranks"]] == [7], "rank 1 was to complain"
    assert (round_json["fault"]["kind"], round_json["fault"]["host"]) == ("lost", "h1"), round_json["fault"]
    failures = [line for line in going.text.splitlines() if line.startswith("round 1: ")]
    assert failures[0].startswith("round 1: h1 is lost and did not come back: "), failures
    assert_nothing_left([two])


def test_a_host_that_was_restarted_is_named(cluster: ClusterToy) -> None:
    _, two = prepare(cluster)
    going = start(cluster, "--set=step_s=2")
    two.power_off()
    two.boot()
    assert going.wait() == 1, going.text
    reported_once(
        going.text,
        r"round 1: the agent on h2 is gone: .*; after the host came back: the agent is not running: the host was",
    )
    reported_once(going.text, "the logs of h2 are gone: h2: no files in .*: the host was restarted, or .*")
    assert cluster.round_json("alpha*")["fault"]["kind"] == "agent"
    assert_nothing_left(cluster.hosts)


def test_later_cases_run_on_the_hosts_that_are_left_and_logs_come_when_the_lost_is_back(cluster: ClusterToy) -> None:
    one, two, three = prepare(cluster, hosts=3)
    cluster.toy.suite("beta")
    cluster.set(lease_time=2)
    going = start(cluster, "--set=step_s=0.3")
    two.link(up=False)
    assert going.wait() == 1, going.text
    (lost,) = cluster.toy.runs[-1].glob("alpha*/round1/round.json")
    assert json.loads(lost.read_text())["fault"]["host"] == "h2"
    beta = cluster.round_json("beta*")
    assert beta["state"] == "finished"
    assert [host["name"] for host in beta["hosts"]] == ["h1", "h3"]
    reported_once(going.text, r"alpha_plain_CPU_2_1_1 round1: the logs of h2 are missing here: h2: .*")
    until(lambda: not ranks(two), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one, three])

    two.link(up=True)
    code, output = cluster.run("-k", "converges", f"--resume={cluster.toy.runs[-1]}", "--set=step_s=0.01")
    assert code == 0, output
    reported_once(output, "alpha_plain_CPU_2_1_1 failed1-round1: the logs of h2 were fetched late")
    (log,) = cluster.toy.runs[-1].glob("alpha*/failed1-round1/h2_noderank1/rank1.out.log")
    assert "TRAIN_START" in log.read_text()
    assert_nothing_left(cluster.hosts)


def test_a_case_that_needs_the_lost_host_says_so_and_logs_come_at_the_runs_end(cluster: ClusterToy) -> None:
    _, two = prepare(cluster, more=WAITING.format(module="running.rounds", owner="Rounds", name="fetch_late_logs"))
    cluster.toy.suite("beta")
    cluster.set(lease_time=2)
    going = start(cluster, "--set=step_s=0.3")
    two.link(up=False)
    going.wait_for(lambda: "the logs of h2 are missing here" in going.text, "the search for the lost host")
    going.wait_for(lambda: (cluster.root / "waits").exists(), "the end of all cases")
    two.link(up=True)
    until(lambda: two.answers(), "h2 behind its link")
    (cluster.root / "go").touch()
    assert going.wait() == 1, going.text
    reported_once(going.text, r"case beta:plain:CPU:2:1:1: needs 2 hosts, 1 available: h1; h2 is left out: h2: .*")
    reported_once(going.text, "alpha_plain_CPU_2_1_1 round1: the logs of h2 were fetched late")
    assert not cluster.round_json("alpha*")["missing"]
    assert "paramiko" not in going.text
    assert_nothing_left(cluster.hosts)


def test_a_host_that_is_back_when_the_next_case_begins_is_used_again(cluster: ClusterToy) -> None:
    """Its agent did not hear that the round is over, and would hold the devices as long as its lease."""
    more = WAITING.format(module="engines.agents.agents_engine", owner="AgentsEngine", name="_fetch_missing_logs")
    one, _ = prepare(
        cluster,
        more=more + "\nfrom pytest_flagperf.engines.agents import agents\nagents._AFTER_A_FAULT_S = 0.5",
    )
    cluster.toy.suite("beta")
    going = start(cluster, "--set=step_s=0.6", "--set=fault=exit")
    one.link(up=False)
    going.wait_for(lambda: (cluster.root / "waits").exists(), "the end of the first case")
    assert ranks(one), "its ranks were to go on"
    one.link(up=True)
    until(lambda: one.answers(), "h1 behind its link")
    (cluster.root / "go").touch()
    assert going.wait() == 1, going.text
    reported_once(going.text, "alpha_plain_CPU_2_1_1 round1: the logs of h1 were fetched late")
    beta = cluster.round_json("beta*")
    assert [host["name"] for host in beta["hosts"]] == ["h1", "h2"]
    assert (beta["fault"]["kind"], beta["fault"]["rank"]) == ("crash", 1), "the same fault was to come again"
    assert_nothing_left(cluster.hosts)


def test_a_wrong_clock_is_reported_and_subtracted_from_all_times(cluster: ClusterToy) -> None:
    one, _ = prepare(cluster)
    one.clock(3600)
    began = time.time()
    output = cluster.passed("--set=step_s=0.1")
    ended = time.time()
    reported_once(output, "flagperf: warning: h1: clock: 1.0 h ahead of this machine's clock .* synchronize the clock")
    round_dir = cluster.toy.runs[-1] / "alpha_plain_CPU_2_1_1/round1"
    offsets = [host["clock_offset_s"] for host in json.loads((round_dir / "plan.json").read_text())["hosts"]]
    assert abs(offsets[0] - 3600) < 1 > abs(offsets[1])
    for host in monitors.read(round_dir).values():
        times = [time for series in host.host.values() for time in series.times]
        assert times
        assert began < min(times) <= max(times) < ended
    notes = [note for file in live_files(cluster.toy.runs[-1]) for note in LiveFile(file).new()]
    elapsed = [note["elapsed_s"] for note in notes if note["kind"] == PROGRESS]
    assert 0 <= min(elapsed) < max(elapsed) < ended - began
    body = json.loads((round_dir / "outcome.json").read_text())
    figures = {one["name"]: one["value"] for one in body["metrics"]}
    assert 1.6 <= figures["time_to_target"] <= figures["e2e_time"] < ended - began
    assert 0 <= figures["init_time"] < 5
    assert began * 1000 < body["started_ms"] < body["ended_ms"] < ended * 1000


def test_a_link_that_is_lost_while_logs_come_costs_nothing(cluster: ClusterToy) -> None:
    _, two = prepare(cluster, more=WAITING.format(module="engines.agents.agents", owner="HostAgent", name="ask"))
    going = cluster.start("-k", "converges")
    going.wait_for(lambda: (cluster.root / "waits").exists(), "the first request for logs")
    two.link(up=False)
    going.wait_for(lambda: "h2 is lost" in going.text, "the loss")
    (cluster.root / "go").touch()
    time.sleep(1)
    two.link(up=True)
    assert going.wait() == 0, going.text
    reported_once(going.text, "h2 is back")
    assert not cluster.round_json()["missing"]
    assert_nothing_left(cluster.hosts)
