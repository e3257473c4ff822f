"""Faults of hosts and of what leads to them: what the user is told, and that the hosts keep nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from flagperf_driver import perflog
from tests.lab.lab import LabHost, until
from tests.lab.runs import ClusterToy, Going, assert_nothing_left

# Loaded by the run itself. A loss is noticed after two seconds where it takes ten; what agents tell is written down.
CONFTEST = """
import json
from pytest_flagperf import round
from pytest_flagperf.cluster import link
from pytest_flagperf.round import muster

if {impatient}:
    link.PING_S, link.SILENCE_S, link.CONNECT_S, muster._SILENCE_S = 0.3, 1.5, 1.5, 2.0

take = round._take

def noted(agent, message, *rest):
    with open("told.jsonl", "a") as file:
        file.write(json.dumps([agent.name, message]) + "\\n")
    return take(agent, message, *rest)

round._take = noted
{more}
"""


def prepare(cluster: ClusterToy, *, impatient: bool = True, more: str = "", hosts: int = 2) -> list[LabHost]:
    """Hosts that were reset, a tree that notes what it is told, and a loss that is noticed soon."""
    (cluster.root / "suites/conftest.py").write_text(CONFTEST.format(impatient=impatient, more=more))
    if hosts != len(cluster.hosts):
        cluster.hosts = cluster.lab.hosts(hosts)
        cluster.settings(nodes="2x1", runtime="host")
    return cluster.hosts


def start(cluster: ClusterToy, *arguments: str, on: list[LabHost] | None = None) -> Going:
    """A run whose ranks all train."""
    going = cluster.start("-k", "converges", *arguments)
    hosts = cluster.hosts[:2] if on is None else on
    going.wait_for(lambda: all(cluster.trains(host) for host in hosts), "training on all hosts")
    return going


def told(cluster: ClusterToy, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """What agents have told of that kind, and which."""
    lines = (cluster.root / "told.jsonl").read_text().splitlines()
    return [(name, message) for name, message in map(json.loads, lines) if message["type"] == kind]


def assert_nothing_lost_or_doubled(cluster: ClusterToy) -> None:
    """What was told of rank 0 while it ran is what its log says, each line once; the others' last words, too."""
    first = [one for _, one in told(cluster, "perflog") if one["rank"] == 0]
    events = [(one["event"], one["value"], one["time_ms"]) for one in first]
    (path,) = cluster.toy.runs[-1].glob("*/round1/h1_noderank0/rank0.out.log")
    records = filter(None, map(perflog.parse_line, path.read_bytes().splitlines()))
    assert events == [(one.event, dict(one.value), one.time_ms) for one in records]
    assert len(events) > 30
    finished = [one["rank"] for _, one in told(cluster, "perflog") if one["event"] == "FINISHED"]
    assert sorted(finished) == [0, 1]


def said_once(text: str, sentence: str) -> str:
    """The sentence that matches, of which there is one; the rest of the text is only for the message."""
    found = set(re.findall(sentence, text))
    assert len(found) == 1, f"{sentence!r} matches {found or 'nothing'} in:\n{text}"
    return str(found.pop())


def fault_of(cluster: ClusterToy) -> dict[str, Any]:
    fault: dict[str, Any] = cluster.round_json("alpha*")["fault"]
    return fault


def ranks(host: LabHost) -> list[str]:
    return [one.cmdline for one in host.processes() if "run_pretraining.py" in one.cmdline]


# -- connections -------------------------------------------------------------------------------------------------


def test_sessions_that_are_killed_are_replaced_and_nothing_is_lost(cluster: ClusterToy) -> None:
    one, two = prepare(cluster)
    going = start(cluster, "--set=step_s=0.3")
    killed = [host.kill_sshd_sessions() for host in (one, two)]
    assert all(killed), "there was nothing to kill"
    going.wait_for(lambda: "h1 is back" in going.text and "h2 is back" in going.text, "both hosts again")
    one.kill_sshd_sessions()
    assert going.wait() == 0, going.text
    said_once(going.text, r"h2 is lost \(h2: the connection is lost: .*\); its ranks go on for 600 s")
    assert cluster.round_json()["state"] == "finished"
    assert [line for line in cluster.round_json()["warnings"] if line == "h2 is back"] == ["h2 is back"]
    assert_nothing_lost_or_doubled(cluster)
    assert_nothing_left(cluster.hosts)


def test_an_open_session_outlives_its_sshd(cluster: ClusterToy) -> None:
    _, two = prepare(cluster)
    going = start(cluster, "--set=step_s=0.1")
    two.stop_sshd()
    assert going.wait() == 0, going.text
    assert "is lost" not in going.text
    two.start_sshd()
    assert_nothing_left(cluster.hosts)


def test_a_host_that_refuses_connections_for_longer_than_the_lease_is_named(cluster: ClusterToy) -> None:
    _, two = prepare(cluster)
    going = start(cluster, "--set=step_s=1", "--lease-time=4")
    two.stop_sshd()
    two.kill_sshd_sessions()
    assert going.wait() == 1, going.text
    sentence = fault_of(cluster)["sentence"]
    assert re.match(r"h2 is lost and did not come back: h2: .* port 22: connection refused", sentence), sentence
    assert f"round 1: {sentence}" in going.text
    until(lambda: not ranks(two), "the end of the ranks whose controller is lost")
    two.start_sshd()


def test_a_short_cut_is_no_loss(cluster: ClusterToy) -> None:
    _, two = prepare(cluster, impatient=False)
    going = start(cluster, "--set=step_s=0.3")
    two.link(up=False)
    time.sleep(3)
    two.link(up=True)
    assert going.wait() == 0, going.text
    assert "is lost" not in going.text
    assert_nothing_lost_or_doubled(cluster)
    assert_nothing_left(cluster.hosts)


@pytest.mark.slow
def test_a_cut_of_twenty_seconds_is_told_and_survived(cluster: ClusterToy) -> None:
    _, two = prepare(cluster, impatient=False)
    going = start(cluster, "--set=step_s=2")
    began = time.monotonic()
    two.link(up=False)
    going.wait_for(lambda: "h2 is lost" in going.text, "the loss")
    assert time.monotonic() - began < 14
    time.sleep(max(0.0, 20 - (time.monotonic() - began)))
    two.link(up=True)
    assert going.wait(60) == 0, going.text
    said_once(going.text, "h2 is back")
    assert_nothing_lost_or_doubled(cluster)
    assert_nothing_left(cluster.hosts)


@pytest.mark.parametrize("switch", ["link", "freeze"])
def test_a_host_that_comes_back_within_its_lease_goes_on(cluster: ClusterToy, switch: str) -> None:
    one, _ = prepare(cluster)
    off: Callable[[], object] = one.freeze if switch == "freeze" else lambda: one.link(up=False)
    on: Callable[[], object] = one.thaw if switch == "freeze" else lambda: one.link(up=True)
    going = start(cluster, "--set=step_s=0.4")
    off()
    going.wait_for(lambda: "h1 is lost" in going.text, "the loss")
    time.sleep(2.5)  # long enough for an attempt to reach it that fails
    on()
    assert going.wait() == 0, going.text
    said_once(going.text, r"h1 is lost \(h1: the connection is lost: no answer for 1.5 s\)")
    said_once(going.text, "h1 is back")
    assert_nothing_lost_or_doubled(cluster)
    assert_nothing_left(cluster.hosts)


@pytest.mark.parametrize("switch", ["link", "freeze", "power"])
def test_a_host_that_stays_away_is_named_when_its_lease_is_over(cluster: ClusterToy, switch: str) -> None:
    one, two = prepare(cluster)
    going = start(cluster, "--set=step_s=2", "--lease-time=4")
    {"link": lambda: two.link(up=False), "freeze": two.freeze, "power": two.power_off}[switch]()
    assert going.wait() == 1, going.text
    fault = fault_of(cluster)
    assert (fault["kind"], fault["host"]) == ("lost", "h2")
    assert fault["sentence"].startswith("h2 is lost and did not come back: h2: "), fault
    assert f"round 1: {fault['sentence']}" in going.text
    missing = cluster.round_json()["missing"]
    assert [each["host"] for each in missing] == ["h2"]
    said_once(going.text, rf"warning: .*the logs of h2 are missing, they are there in {missing[0]['log_dir']}: .*")
    if switch == "freeze":
        two.thaw()
    if switch != "power":
        until(lambda: not ranks(two), "the end of the ranks, which their agent has to see to")
    assert_nothing_left([one])
