"""A round in a container: the same messages as on a host, and the container is always removed."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from flagperf_driver import seeds
from flagperf_driver.node.folder import CONTAINER_LOG, RANKS
from tests.driver.docker_engine import NAME, DockerEngine
from tests.driver.lab import FOREVER, Lab
from tests.helpers.processes import kill, running

pytestmark = pytest.mark.integration

# A program that stays the parent of what runs in its container, as Apptainer and srun do.
PARENT = """
import os, signal, subprocess, sys
print("INFO: starting", flush=True)
child = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait() % 256)
"""
SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


def starter(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "flagperf_driver.node.agent.starter", str(lab.log_dir)]


def engine_of(lab: Lab) -> DockerEngine:
    return DockerEngine(lab.folder / "docker.sock", starter(lab), lab.env)


@pytest.fixture
def docker(lab: Lab) -> Iterator[DockerEngine]:
    engine = engine_of(lab)
    yield engine
    engine.close()


def start(lab: Lab, docker: DockerEngine, *programs: str, **settings: object) -> None:
    lab.start(*programs, container={"socket": str(docker.path), "id": NAME}, **settings)


def start_program(lab: Lab, *programs: str, argv: Sequence[str] = ()) -> None:
    """Start ranks in a container that lives as long as a program."""
    argv = argv or [sys.executable, "-c", PARENT, *starter(lab)]
    lab.start(*programs, container={"argv": argv, "env": {"FROM_ORDER": "yes"}})


@pytest.mark.parametrize("in_docker", [True, False])
def test_a_round_in_a_container_sends_the_messages_of_a_host(lab: Lab, docker: DockerEngine, in_docker: bool) -> None:
    program = """
        log(events.INIT_START)
        print(os.environ.get("FROM_ORDER"), "TMPDIR" in os.environ, flush=True)
        train(1, 30)
        log(events.FINISHED)
    """
    if in_docker:
        start(lab, docker, program, program)
    else:
        start_program(lab, program, program)
        lab.wait_for_start()
        assert "INFO: starting" in (lab.log_dir / CONTAINER_LOG).read_text()
    lab.end()
    assert lab.of("fault", "warning") == []
    assert sorted((m["rank"], m["code"], m["cause"]) for m in lab.exits) == [(0, 0, None), (1, 0, None)]
    assert [m["event"] for m in lab.of("perflog") if m["rank"] == 0] == ["INIT_START", "FINISHED"]
    numbers = [m["seq"] for m in lab.messages if "seq" in m]
    assert numbers == list(range(1, len(numbers) + 1))
    assert f"{None if in_docker else 'yes'} True" in lab.log(1)
    assert json.loads((lab.log_dir / "rank1.exit.json").read_text())["code"] == 0
    assert docker.removed.is_set() is in_docker
    left = [path.name for path in lab.log_dir.iterdir() if path.name.startswith("agent.")]
    assert left == [], "files of the starter are none of the round's logs"


ASKS = """
    import threading
    from flagperf_driver.training.saved_states import ask_for_order

    orders = []
    asking = threading.Thread(target=lambda: orders.append(ask_for_order(Path(), 1)))
    asking.start()
    while not Path("counts").exists():
        time.sleep(0.01)
    print("before:", orders, flush=True)
    log(events.TRAIN_START)
    asking.join()
    orders.append(ask_for_order(Path(), 2))
    log(events.FINISHED, {"orders": orders})
"""


@pytest.mark.parametrize("in_docker", [True, False])
def test_a_rank_learns_the_order_of_its_data_once_its_time_counts(
    lab: Lab, docker: DockerEngine, in_docker: bool
) -> None:
    if in_docker:
        start(lab, docker, ASKS, order_secret=7)
    else:
        lab.start(ASKS, order_secret=7)
    lab.wait_for_start()
    while len(lab.of("beat")) < 4:  # the agent has read the question
        lab.next()
    (lab.log_dir / "counts").touch()
    orders = lab.wait_for("perflog", event="FINISHED")["value"]["orders"]
    lab.end()
    assert "before: []" in lab.log(0)
    seen = json.loads((lab.log_dir / "milestones.json").read_text())["states"]["orders"]
    assert [seen["1"], seen["2"]] == orders == [seeds.derive(7, "order", epoch) >> 1 for epoch in (1, 2)]


def test_a_failed_rank_in_a_container_is_reported(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER, "import no_such_module")
    fault = lab.fault()
    assert (fault["kind"], fault["rank"]) == ("crash", 1)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in fault["sentence"]
    assert lab.exit(0)["cause"] == "stopped"
    assert len(lab.of("fault")) == 1
    assert docker.removed.is_set()


@pytest.mark.parametrize("ended", ["was killed (exit", "exceeded its memory limit (", "was ended by SIGTERM"])
def test_a_killed_container_is_reported(lab: Lab, docker: DockerEngine, ended: str) -> None:
    docker.oom_killed = "memory" in ended
    start(lab, docker, FOREVER, FOREVER)
    lab.wait_for_start(1)
    docker.signal(signal.SIGTERM if "SIGTERM" in ended else signal.SIGKILL)
    fault = lab.fault()
    assert fault["kind"] == "container"
    assert fault["sentence"].startswith(f"the container of ranks 0 to 1 {ended}")
    assert {(m["rank"], m["code"], m["cause"]) for m in lab.of("exit")} == {(0, None, "crash"), (1, None, "crash")}
    assert json.loads((lab.log_dir / "rank1.exit.json").read_text())["cause"] == "crash"
    assert docker.removed.is_set()


def test_a_container_that_cannot_start_is_reported_with_the_reason(lab: Lab, docker: DockerEngine) -> None:
    docker.refusals["start"] = "no space left on device"
    start(lab, docker, FOREVER)
    fault = lab.fault()
    assert fault["kind"] == "container"
    assert "the container of rank 0 could not be started: Docker refused POST" in fault["sentence"]
    assert "no space left on device" in fault["sentence"]
    assert docker.removed.is_set()


def test_a_container_without_a_starter_is_reported_with_its_last_line(lab: Lab, docker: DockerEngine) -> None:
    docker.argv = [sys.executable, "-c", "import sys; sys.exit('no module named flagperf_driver')"]
    start(lab, docker, FOREVER)
    sentence = lab.fault()["sentence"]
    assert sentence == "the container of rank 0 ended with exit code 1; its last line: no module named flagperf_driver"
    assert docker.removed.is_set()


@pytest.mark.parametrize("in_docker", [True, False])
def test_a_container_that_hangs_before_its_starter_is_removed(lab: Lab, docker: DockerEngine, in_docker: bool) -> None:
    docker.argv = SLEEP
    start(lab, docker, FOREVER) if in_docker else start_program(lab, FOREVER, argv=docker.argv)
    lab.wait_for("beat")
    lab.next()  # the second one
    lab.send({"op": "stop", "reason": "enough"})
    lab.end()  # fails if processes are left
    assert lab.exit(0)["cause"] == "stopped"
    assert docker.removed.is_set() is in_docker


def test_a_container_that_cannot_be_removed_yet_is_a_warning(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, "while not Path('go').exists(): time.sleep(0.01)\nlog(events.FINISHED)")
    lab.wait_for_start()
    assert not (lab.log_dir / RANKS).exists(), "it has the ranks' variables"
    docker.refusals[""] = "the daemon is shutting down"
    (lab.log_dir / "go").touch()
    warning = lab.wait_for("warning")
    assert f"container {NAME} cannot be removed yet: " in warning["sentence"]
    docker.refusals.clear()
    lab.end()
    assert lab.of("fault") == []
    assert lab.exit(0)["code"] == 0
    assert len(lab.of("warning")) == 1
    assert docker.removed.is_set()


@pytest.mark.parametrize("kind", ["docker", "docker without its engine", "program"])
def test_a_container_ends_with_its_killed_agent(lab: Lab, docker: DockerEngine, kind: str) -> None:
    start_program(lab, FOREVER) if kind == "program" else start(lab, docker, FOREVER)
    lab.wait_for_start()
    if kind != "docker":
        docker.refusals[""] = "gone"
    lab.agent.kill()
    lab.wait_until_empty()
    assert docker.removed.wait(10 if kind == "docker" else 0) is (kind == "docker")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_files_of_root_in_a_container_are_given_to_the_folders_owner(lab: Lab, docker: DockerEngine) -> None:
    os.chown(lab.log_dir, 12345, 12345)
    start(lab, docker, "Path('made').mkdir(); Path('made/it').touch()")
    lab.end()
    owners = {path.name: path.stat().st_uid for path in lab.log_dir.rglob("*")}
    assert {owners[name] for name in ("made", "it", "rank0.out.log")} == {12345}


def test_a_paused_container_is_removed(tmp_path: Path) -> None:
    with Lab(tmp_path, patch="from flagperf_driver.node import silence; silence.CONTAINER_S = 2") as lab:
        docker = engine_of(lab)
        start(lab, docker, FOREVER)
        lab.wait_for_start()
        docker.signal(signal.SIGSTOP)
        assert "the container of rank 0 has shown no sign of life for 2 s: it is paused" in lab.fault()["sentence"]
        docker.close()


def test_a_starter_that_does_not_begin_is_reported(tmp_path: Path) -> None:
    with Lab(tmp_path, patch="from flagperf_driver.node import silence; silence.STARTER_S = 1") as lab:
        start_program(lab, FOREVER, argv=SLEEP)
        assert "rank 0 is running, but its starter did not begin within 1 s" in lab.fault()["sentence"]


def test_a_container_with_a_frozen_starter_is_removed_after_the_grace(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER, grace_s=-13)  # 2 of the 15 seconds after the grace remain
    lab.wait_for_start()
    docker.signal(signal.SIGSTOP)
    with suppress(ProcessLookupError):
        lab.send({"op": "stop"})
    lab.end()
    assert docker.removed.is_set()
    assert lab.exit(0)["cause"] == "stopped"


def test_a_killed_program_is_reported_and_takes_its_ranks_along(lab: Lab) -> None:
    start_program(lab, "print(os.environ['TMPDIR'], flush=True); " + FOREVER, FOREVER)
    lab.wait_for_start(1)
    lab.wait_for_line(0, "/tmp/")
    folder = Path((lab.log_dir / "rank0.out.log").read_text().split()[0])
    assert folder.is_dir()
    (parent,) = (process.pid for process in running() if PARENT in process.words and process.pid in lab.living())
    kill(parent)
    fault = lab.fault()
    assert fault["kind"] == "container"
    assert fault["sentence"].startswith("the container of ranks 0 to 1 was killed by signal 9; its last line: INFO")
    assert {(m["rank"], m["cause"]) for m in lab.of("exit")} == {(0, "crash"), (1, "crash")}
    lab.wait_until_empty()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["/no/such/apptainer"], "could not be started: /no/such/apptainer: No such file or directory"),
        ([sys.executable, "-c", "import sys; sys.exit('FATAL: no image')"], "its last line: FATAL: no image"),
    ],
)
def test_a_program_that_cannot_start_is_reported_with_the_reason(lab: Lab, argv: list[str], problem: str) -> None:
    start_program(lab, FOREVER, argv=argv)
    fault = lab.fault()
    assert fault["kind"] == "container"
    assert problem in fault["sentence"]
