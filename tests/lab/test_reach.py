"""Hosts without SSH: real containers, each on a machine of the lab, that ``docker exec`` reaches."""

from __future__ import annotations

from tests.lab.runs import POD, ClusterToy, assert_nothing_left


def test_a_command_reaches_hosts_and_a_killed_one_is_replaced(cluster: ClusterToy) -> None:
    cluster.use_pods(nodes="2x1")
    going = cluster.start("-k", "converges", "--set=step_s=0.3")
    going.wait_for(lambda: "step 1 " in going.text, "training")
    cluster.hosts[1].run(["pkill", "-KILL", "-f", "stdin.readline"])
    going.wait_for(lambda: "h2 is back" in going.text, "the host again")
    assert going.wait(180) == 0, going.text
    assert cluster.round_json()["state"] == "finished"
    for host in cluster.hosts:
        host.run(["docker", "rm", "-f", POD])
    assert_nothing_left(cluster.hosts)
