"""Hosts without SSH: real containers, each on a machine of the lab, that ``docker exec`` reaches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.lab import PYTHON
from tests.lab.runs import ClusterToy, assert_nothing_left


@pytest.fixture
def pods(cluster: ClusterToy) -> Iterator[ClusterToy]:
    """One container with a Python on each of the two hosts, named in flagperf.toml with the command to reach it."""
    cases = "".join(f"{host.name}) on={host.root}/run/docker.sock ;;\n" for host in cluster.hosts)
    program = cluster.root / "reach.sh"
    program.write_text(f'case $1 in\n{cases}esac\nshift\nexec docker -H unix://$on exec -i pod "$@"\n')
    for host in cluster.hosts:
        host.docker()
        image = cluster.lab.image(host, PYTHON.parent)
        options = cluster.lab.container_options(PYTHON)
        # As a pod has: an address of its own, and a process that reaps what is left.
        words = ["docker", "run", "-d", "--init", "--name=pod", "--network=host", "--pid=host", *options, image]
        host.run([*words, "sleep", "100000"])
    names = [host.name for host in cluster.hosts]
    text = f"[cluster]\nhosts = {names}\npython = '{PYTHON}'\nreach = 'sh {program} {{host}}'\n"
    (cluster.root / "flagperf.toml").write_text(text)
    cluster.set(nodes="2x1", runtime="host")
    yield cluster
    for host in cluster.hosts:
        host.run(["docker", "rm", "-f", "pod"], check=False)


def test_a_command_reaches_hosts_and_a_killed_one_is_replaced(pods: ClusterToy) -> None:
    going = pods.start("-k", "converges", "--set=step_s=0.3")
    going.wait_for(lambda: "step 1 " in going.text, "training")
    pods.hosts[1].run(["pkill", "-KILL", "-f", "stdin.readline"])
    going.wait_for(lambda: "h2 is back" in going.text, "the host again")
    assert going.wait(180) == 0, going.text
    assert pods.round_json()["state"] == "finished"
    for host in pods.hosts:
        host.run(["docker", "rm", "-f", "pod"])
    assert_nothing_left(pods.hosts)
