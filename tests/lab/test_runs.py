"""Runs on hosts over SSH: what a user sees, what is in the reports, and that nothing stays."""

from __future__ import annotations

from typing import Any

from pytest_flagperf.stored.live_record import HOST, LiveFile, live_files
from tests.lab.runs import ClusterToy, assert_nothing_left, leftovers
from tests.trees import PLAIN_MEASUREMENT_TOML


def test_ranks_are_found_while_they_run(cluster: ClusterToy) -> None:
    """The control of all that look for leftovers."""
    going = cluster.start("-k", "converges", "--set=step_s=60")
    going.wait_for(lambda: all(leftovers(host) for host in cluster.hosts), "agents on both hosts")
    going.interrupt()
    assert going.wait() == 2, going.text
    assert_nothing_left(cluster.hosts)


def test_a_run_on_another_host_can_be_watched_while_it_runs(cluster: ClusterToy) -> None:
    cluster.use_nvidia(nodes="1x2")
    going = cluster.start("-k", "converges", "--set=step_s=0.7")

    def hosts() -> dict[str, dict[str, Any]]:
        """The latest values of each host."""
        latest: dict[str, dict[str, Any]] = {}
        for entry in (
            entry for path in cluster.toy.runs for file in live_files(path) for entry in LiveFile(file).new()
        ):
            if entry["kind"] == HOST:
                latest.setdefault(entry["host"], {}).update(entry)
        return latest

    going.wait_for(lambda: hosts().get("h1", {}).keys() >= {"ranks", "samples"}, "the ranks and the samples of h1", 60)
    assert hosts().keys() == {"h1"}
    host = hosts()["h1"]
    assert list(host["ranks"]) == ["0", "1"]
    assert len(host["samples"]["devices"]) == 2
    for device in host["samples"]["devices"].values():
        assert device.keys() >= {"power", "temperature", "utilization", "memory_used", "memory_total"}
    assert host["samples"]["host"].keys() == {"cpu", "memory"}
    assert going.wait() == 0, going.text


def test_a_slow_host_is_left_out_after_a_short_measurement_of_all(cluster: ClusterToy) -> None:
    cluster.settings(nodes="1x1", runtime="host")
    cluster.toy.measurement(toml=PLAIN_MEASUREMENT_TOML + 'preflight = ["slow_rank=0"]\n')
    output = cluster.passed("--preflight=leave-out", "-k", "alpha and converges")
    assert "left out: h1: rank 0 is slow: copy 1024 takes 100.0 % longer than on the others" in output
    assert cluster.round_json("alpha*")["hosts"][0]["name"] == "h2"
