"""Runs on hosts over SSH: what a user sees, what is in the reports, and that nothing stays."""

from __future__ import annotations

from tests.lab.runs import ClusterToy, assert_nothing_left, leftovers


def test_a_run_on_two_hosts_ends_well_and_leaves_nothing(cluster: ClusterToy) -> None:
    code, output = cluster.run("-k", "converges")
    assert code == 0, output
    assert [host["name"] for host in cluster.round_json()["hosts"]] == ["h1", "h2"]
    assert_nothing_left(cluster.hosts)


def test_ranks_are_found_while_they_run(cluster: ClusterToy) -> None:
    """The control of all that look for leftovers."""
    going = cluster.start("-k", "converges", "--set=step_s=60")
    going.wait_for(lambda: all(leftovers(host) for host in cluster.hosts), "agents on both hosts")
    going.interrupt()
    assert going.wait() == 2, going.text
    assert_nothing_left(cluster.hosts)


def test_containers_on_two_hosts(cluster: ClusterToy) -> None:
    cluster.use_docker(nodes="2x1")
    code, output = cluster.run("-k", "converges")
    assert code == 0, output
    assert_nothing_left(cluster.hosts)
