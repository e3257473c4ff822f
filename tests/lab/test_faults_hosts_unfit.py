"""Devices in use, caches, and leftovers on a host: the messages, and the devices used instead."""

import json

from tests.helpers.waiting import until
from tests.lab.lab import LabHost
from tests.lab.runs import ClusterToy

MIB = 1 << 20


def test_a_device_with_a_foreign_process_is_not_used(gpus: ClusterToy, foreign_pid: int) -> None:
    host = gpus.hosts[0]
    host.nvml[0].processes((foreign_pid, 700 * MIB))
    code, output = gpus.run("-k", "converges")
    assert code == 0, output
    assert f"warning: h1: foreign processes: device 0 is in use by sleep (pid {foreign_pid} of root, 700 MiB)" in output
    (plan,) = gpus.toy.runs[-1].glob("*/round1/plan.json")
    assert [(host["name"], host["devices"]) for host in json.loads(plan.read_text())["hosts"]] == [("h1", [1, 2])]
    assert foreign_pid in [one.pid for one in host.processes()]


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
