"""Hosts and devices that are unfit, in use, or have leftovers: the messages, and the hosts used instead."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.lab.lab import LabHost
from tests.lab.nvml import GPU_IS_LOST
from tests.lab.runs import ClusterToy, assert_nothing_left
from tests.waiting import until

pytestmark = pytest.mark.slow

MIB = 1 << 20


def placed(run: Path) -> list[tuple[str, list[int]]]:
    """Where the only round of a run was: each host and its devices."""
    (plan,) = run.glob("*/round1/plan.json")
    return [(host["name"], host["devices"]) for host in json.loads(plan.read_text())["hosts"]]


# -- data -------------------------------------------------------------------------------------------------


@pytest.fixture
def data(cluster: ClusterToy) -> ClusterToy:
    """A suite that reads data, which are on the second host only."""
    with (cluster.root / "suites/alpha/plain/suite.toml").open("a") as file:
        file.write('[[scales.reference.data]]\npath = "train.bin"\nsize = 4\n')
    for shape in ("1x1", "2x1"):
        cluster.toy.config("alpha", shape, "")
    for host, size in zip(cluster.hosts, (3, 4), strict=True):
        host.wear()
        host.run(["mkdir", "-p", "/toydata"])
        (host.root / "toydata/train.bin").write_bytes(b"x" * size)
    return cluster


def test_a_host_without_the_data_is_named_and_left_out(data: ClusterToy) -> None:
    output = data.passed("--vendor=acme", "--nodes=1x1", "--no-throughput-only", "--data-dir=/toydata")
    assert "left out: h1: data: /toydata/train.bin: got 3 bytes, expected 4" in output
    assert placed(data.toy.runs[-1]) == [("h2", [0])]


# -- devices ----------------------------------------------------------------------------------------------


def test_a_device_with_a_foreign_process_is_not_used(gpus: ClusterToy, foreign_pid: int) -> None:
    host = gpus.hosts[0]
    host.nvml[0].processes((foreign_pid, 700 * MIB))
    code, output = gpus.run("-k", "converges")
    assert code == 0, output
    assert f"warning: h1: foreign processes: device 0 is in use by sleep (pid {foreign_pid} of root, 700 MiB)" in output
    assert placed(gpus.toy.runs[-1]) == [("h1", [1, 2])]
    assert foreign_pid in [one.pid for one in host.processes()]


def test_a_device_that_is_lost_in_a_round_is_reported_with_its_results(gpus: ClusterToy) -> None:
    host = gpus.hosts[0]
    gpus.set(sample=0.1)
    going = gpus.start("-k", "converges", "--set=step_s=0.5")
    going.wait_for(lambda: gpus.trains(host) and gpus.samples(host), "the training and its samples")
    host.nvml[1].set(error=GPU_IS_LOST)
    assert going.wait() == 0, going.text
    sentence = "h1: device 1 is lost: "
    assert f"warning: alpha:plain:A100:1:2:1: round 1: {sentence}" in going.text
    run = gpus.toy.runs[-1]
    assert sentence in (run / "report.html").read_text()
    warnings = [item.get("value") or "" for item in ET.parse(run / "junit.xml").iter("property")]
    assert any(text.startswith(sentence) for text in warnings)
    (report,) = run.glob("*/round1/h1_noderank0/monitors.json")
    assert [event["device"] for event in json.loads(report.read_text())["events"]] == [1]
    assert_nothing_left(gpus.hosts)


# -- caches, litter ---------------------------------------------------------------------------------------


def test_caches_that_a_user_may_not_clear_are_a_warning_in_the_report(cluster: ClusterToy) -> None:
    host = cluster.hosts[0]
    host.add_user("bench")
    cluster.set(clear_caches=True)
    output = cluster.passed(f"--cluster=bench@{host.address}", "--nodes=1x1")
    assert "caches: clear-caches is set, but only root can clear the file caches - log in as root" in output
    sentence = "the host's caches could not be cleared: /proc/sys/vm/drop_caches: Permission denied"
    assert f"round 1: {host.address}: {sentence}" in output
    report = (cluster.toy.runs[-1] / "report.html").read_text()
    assert "caches could not be cleared: /proc/sys/vm/drop_caches: Permission denied" in report


def test_what_dead_runs_left_is_removed_and_named_and_nothing_else(cluster: ClusterToy) -> None:
    host = cluster.hosts[0]
    host.docker()
    host.run(["mkdir", "-p", "/tmp/dead", "/tmp/alive"])
    host.run(["touch", "/tmp/dead/agent.lock", "/tmp/alive/agent.lock"])
    for name, folder in {"orphan": "/tmp/dead", "forgotten": "/tmp/removed", "kept": "/tmp/alive"}.items():
        words = ["--detach", "--network=host", f"--name={name}", f"--label=flagperf.log_dir={folder}"]
        host.run(["docker", "run", *words, "flagperf-lab:base", "sleep", "999"])
    host.start(["env", "FLAGPERF_LOG_DIR=/tmp/dead", "sleep", "1001"])
    host.start(["flock", "/tmp/alive/agent.lock", "env", "FLAGPERF_LOG_DIR=/tmp/alive", "sleep", "1002"])
    until(lambda: {"sleep 1001", "sleep 1002"} <= _commands(host), "what a dead run left")
    code, output = cluster.run("-k", "converges", "--nodes=1x1")
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if "leftovers" in line]
    assert line.startswith("flagperf: warning: h1: leftovers: a dead run left ")
    for what in ("container orphan of /tmp/dead", "container forgotten of /tmp/removed", ") of /tmp/dead"):
        assert what in line
    assert line.endswith("; removed")
    assert [row["Names"] for row in host.containers()] == ["kept"]
    assert "sleep 1001" not in _commands(host)
    assert "sleep 1002" in _commands(host)


def _commands(host: LabHost) -> set[str]:
    return {one.cmdline for one in host.processes()}


# -- two runs ---------------------------------------------------------------------------------------------


def test_two_runs_on_all_hosts_wait_for_each_other(cluster: ClusterToy) -> None:
    cluster.set(lease="host")
    first = cluster.start("-k", "converges", "--set=step_s=60")
    first.wait_for(lambda: all(map(_ranks, cluster.hosts)), "the first run's ranks")
    ranks = list(map(_ranks, cluster.hosts))
    second = cluster.start("-k", "converges")
    second.wait_for(lambda: "waits: h1: host is held by " in second.text, "that the second one waits")
    assert first.process.poll() is None
    assert list(map(_ranks, cluster.hosts)) == ranks
    first.interrupt()
    assert first.wait() == pytest.ExitCode.INTERRUPTED, first.text
    assert second.wait() == 0, second.text
    assert_nothing_left(cluster.hosts)


def test_two_runs_on_one_host_have_devices_of_their_own(gpus: ClusterToy) -> None:
    first = gpus.start("-k", "converges", "--set=step_s=60")
    host = gpus.hosts[0]
    first.wait_for(lambda: bool(_ranks(host)), "the first run's ranks")
    host.nvml[0].processes((_ranks(host)[0], 700 * MIB))
    code, output = gpus.run("-k", "converges")
    assert code == 0, output
    assert "waits: " not in output
    assert "foreign processes" not in output
    first.interrupt()
    assert first.wait() == pytest.ExitCode.INTERRUPTED, first.text
    assert [placed(run) for run in gpus.toy.runs] == [[("h1", [0, 1])], [("h1", [2, 3])]]
    assert_nothing_left(gpus.hosts)


def _ranks(host: LabHost) -> list[int]:
    return [one.pid for one in host.processes() if "run_pretraining" in one.cmdline]
