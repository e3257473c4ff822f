"""The harness on the lab's hosts, killed, interrupted, asleep, and beside another one."""

import json
import re
import signal
import socket
import time

import psutil
import pytest

from pytest_flagperf.hosts import silence
from tests.helpers.trees import write
from tests.helpers.waiting import until
from tests.lab.runs import ClusterToy, assert_nothing_left, leftovers
from tests.plugin.conftest import Going

# A training that goes on until it is ended.
FOREVER = ("--set=step_s=0.1", "--set=max_steps=100000", "--set=learning_rate=0")
ONE = ("-k", "converges")


def wait_for_training(cluster: ClusterToy, going: Going) -> None:
    going.wait_for(lambda: all(cluster.trains(host) for host in cluster.hosts), "training on all hosts", 60)


def test_a_killed_run_is_taken_up_while_its_ranks_still_run(cluster: ClusterToy) -> None:
    cluster.use_docker(nodes="2x1")
    going = cluster.start(*ONE, "--set=step_s=0.4")
    wait_for_training(cluster, going)
    going.kill()
    code, output = cluster.run(*ONE, f"--resume={cluster.toy.runs[-1]}")
    assert code == 0, output
    assert "alpha_plain_CPU_2_1_1 round1 still runs: resuming it" in output
    end = cluster.round_json()
    assert (end["state"], end["fault"], end["missing"]) == ("finished", None, [])
    logs = sorted(cluster.toy.runs[-1].glob("*/round1/*/rank*.out.log"))
    assert [log.read_text().count("STEP_END") for log in logs] == [16, 16]
    assert_nothing_left(cluster.hosts)


def test_agents_that_had_nothing_to_start_yet_go_soon(cluster: ClusterToy) -> None:
    """Killed while it prepared: devices are not held for the ten minutes of a lease."""
    cluster.use_docker(nodes="2x1")
    _slow_down(cluster, CREATING)
    going = cluster.start(*ONE)
    # Not those in which the image is looked at.
    going.wait_for(lambda: all("flagperf.log_dir" in str(one.containers()) for one in cluster.hosts), "containers", 60)
    going.kill()
    assert_nothing_left(cluster.hosts)
    code, output = cluster.run(*ONE, f"--resume={cluster.toy.runs[-1]}")
    assert code == 0, output


# A conftest.py that makes a stage last: it says that it is there, and goes on after a while.
SLOW = """
import importlib, pathlib, time
collect = importlib.import_module("pytest_flagperf.engines.agents.collect")
docker = importlib.import_module("pytest_flagperf.runtime.docker.containers")
rounds = importlib.import_module("pytest_flagperf.stored.round_dir")

def slowly(work):
    def done(*words, **more):
        result = work(*words, **more)
        pathlib.Path({there!r}).touch()
        time.sleep(4)
        return result
    return done

{what} = slowly({what})
"""
CREATING = "docker.DockerSpec.create"
COLLECTING = "collect._collect_one"
PLANNING = "rounds.RoundDir.write_inputs"
RECORDING = "rounds.RoundDir.write_record"


def _slow_down(cluster: ClusterToy, what: str) -> None:
    (cluster.root / "conftest.py").write_text(SLOW.format(there=str(cluster.root / "there"), what=what))


@pytest.mark.parametrize("what", [PLANNING, COLLECTING, RECORDING])
def test_a_run_killed_while_no_rank_runs_is_taken_up(cluster: ClusterToy, what: str) -> None:
    cluster.use_docker(nodes="2x1")
    _slow_down(cluster, what)
    going = cluster.start(*ONE)
    going.wait_for((cluster.root / "there").is_file, "the stage", 60)
    going.kill()
    (cluster.root / "conftest.py").unlink()
    code, output = cluster.run(*ONE, f"--resume={cluster.toy.runs[-1]}")
    assert code == 0, output
    assert ("still runs: resuming it" in output) == (what == COLLECTING)
    assert "are missing" not in output
    assert_nothing_left(cluster.hosts)


def _interrupted(cluster: ClusterToy, going: Going) -> None:
    """Once, and it ends in order and in time, with pytest's own exit code."""
    going.interrupt()
    assert going.wait(20) == pytest.ExitCode.INTERRUPTED, going.text
    assert "Traceback" not in going.text
    assert_nothing_left(cluster.hosts)


def test_ctrl_c_while_connecting(cluster: ClusterToy) -> None:
    cluster.hosts[1].freeze()
    going = cluster.start(*ONE)
    going.wait_for(lambda: "collected" in going.text, "the end of the collection")
    time.sleep(1)
    try:
        going.interrupt()
        assert going.wait(20) == pytest.ExitCode.INTERRUPTED, going.text
    finally:
        cluster.hosts[1].thaw()
    assert_nothing_left(cluster.hosts)


def test_ctrl_c_while_waiting_for_devices(cluster: ClusterToy) -> None:
    cluster.set(lease="host")
    first = cluster.start(*ONE, *FOREVER)
    wait_for_training(cluster, first)
    second = cluster.start(*ONE)
    second.wait_for(lambda: "waits" in second.text, "that it waits")
    assert re.search(r"alpha:plain:CPU:2:1:1 waits: h1: host is held by pid \d+, user root, since [\d:]+", second.text)
    second.interrupt()
    assert second.wait(30) == pytest.ExitCode.INTERRUPTED, second.text
    assert first.process.poll() is None
    _interrupted(cluster, first)


def test_ctrl_c_while_an_image_is_built(cluster: ClusterToy) -> None:
    cluster.use_docker(nodes="2x1")
    write(cluster.root, "vendors/cpu/images/plain/Dockerfile", "FROM flagperf-lab:python\nRUN echo begun; sleep 600\n")
    settings = (cluster.root / "flagperf.toml").read_text()
    (cluster.root / "flagperf.toml").write_text(re.sub(r"(?m)^image.*\n", "", settings))
    going = cluster.start(*ONE)
    going.wait_for(lambda: all(host.containers() for host in cluster.hosts), "the build on both hosts", 60)
    _interrupted(cluster, going)


def test_ctrl_c_while_an_environment_is_built(cluster: ClusterToy) -> None:
    """From an index that takes the call and says nothing."""
    (cluster.root / "suites/alpha/plain/requirements.txt").write_text("no-such-thing\n")
    with socket.create_server((cluster.lab.address, 0)) as silent:
        address, port = silent.getsockname()
        cluster.settings(nodes="2x1", runtime="venv", pip_source=f"http://{address}:{port}/simple")
        going = cluster.start(*ONE)
        going.wait_for(lambda: all("uv-" in str(host.processes()) for host in cluster.hosts), "uv on both hosts", 60)
        _interrupted(cluster, going)
    assert not [path for host in cluster.hosts for path in (host.root / "root/.cache").glob("*/venv/plain-*/bin")]


@pytest.mark.parametrize("what", [CREATING, COLLECTING])
def test_ctrl_c_while_containers_are_created_or_logs_collected(cluster: ClusterToy, what: str) -> None:
    cluster.use_docker(nodes="2x1")
    _slow_down(cluster, what)
    going = cluster.start(*ONE)
    going.wait_for((cluster.root / "there").is_file, "the stage", 60)
    _interrupted(cluster, going)


def test_ctrl_c_twice_ends_at_once(cluster: ClusterToy) -> None:
    """The ranks do not listen, so that the orderly end takes its grace; the agents see to it alone."""
    program = cluster.root / "suites/alpha/plain/run_pretraining.py"
    program.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + program.read_text())
    going = cluster.start(*ONE, *FOREVER)
    wait_for_training(cluster, going)
    going.interrupt()
    time.sleep(0.5)
    going.interrupt()
    assert going.wait(20) in (pytest.ExitCode.INTERRUPTED, -signal.SIGINT), going.text
    # The folders of logs stay, which a later run may still want.
    until(lambda: all(line.startswith("folder ") for host in cluster.hosts for line in leftovers(host)), "its end")


def test_a_laptop_that_sleeps_loses_only_what_had_a_short_lease(cluster: ClusterToy) -> None:
    one, two = cluster.hosts
    cluster.settings([one], nodes="1x1", runtime="host", lease_time=1)
    short = cluster.start(*ONE, *FOREVER, "--reports=short")
    short.wait_for(lambda: cluster.trains(one), "training")
    cluster.settings([two], nodes="1x1", runtime="host", lease_time=60)
    long = cluster.start(*ONE, "--set=step_s=1.2", "--reports=long")
    long.wait_for(lambda: cluster.trains(two), "training")
    for going in (short, long):
        going.process.send_signal(signal.SIGSTOP)
    time.sleep(silence.RELAY_S + silence.PING_S + 4)
    for going in (short, long):
        going.process.send_signal(signal.SIGCONT)
    assert short.wait(60) == 1, short.text
    sentence = "the controller was lost, and its lease of 1 s has expired (lease_s)"
    assert f"round 1: h1: {sentence}" in short.text
    assert long.wait(60) == 0, long.text
    (path,) = cluster.root.glob("short/run*/*/round1/round.json")
    end = json.loads(path.read_text())
    assert (end["fault"]["kind"], end["fault"]["host"]) == ("lost_controller", "h1")
    (log,) = cluster.root.glob("long/run*/*/round1/*/rank0.out.log")
    assert log.read_text().count("STEP_END") == 16
    assert_nothing_left(cluster.hosts)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_killed_worker_leaves_nothing_and_is_reported(cluster: ClusterToy, restarts: bool) -> None:
    """A new worker continues its round; without a new worker the ranks are stopped at the end of the run."""
    cluster.hosts = cluster.lab.hosts(4)
    cluster.toy.suite("beta")
    cluster.settings(nodes="2x1", runtime="host", lease="host")
    going = cluster.start(*ONE, "-n2", "--set=step_s=0.4", *([] if restarts else ["--max-worker-restart=0"]))
    going.wait_for(lambda: all(cluster.trains(host) for host in cluster.hosts), "training on all four", 60)
    children = psutil.Process(going.process.pid).children()
    next(child for child in children if "exec(eval(sys.stdin" in str(child.cmdline())).kill()
    assert going.wait() == 1, going.text
    assert "crashed while running 'suites/" in going.text
    assert_nothing_left(cluster.hosts)
    plans = {path.parent for path in cluster.toy.runs[-1].glob("*/round1/plan.json")}
    ends = [json.loads((path / "round.json").read_text()) for path in plans]
    faults = [end["fault"]["sentence"] for end in ends if end["fault"]]
    if restarts:
        assert faults == []
        assert [end["state"] for end in ends] == ["finished", "finished"]
    else:
        assert faults == ["the pytest-xdist worker that ran this round died"]
        assert faults[0] in (cluster.toy.runs[-1] / "results.json").read_text()
