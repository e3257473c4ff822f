"""A round in a container: the same messages as on a host, and the container is always removed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.driver.docker_engine import NAME, DockerEngine
from tests.driver.lab import Lab

pytestmark = pytest.mark.integration

FOREVER = "train(1, 10**6)"


def engine_of(lab: Lab) -> DockerEngine:
    argv = [sys.executable, "-m", "flagperf_driver.node.agent.main", "--inner", str(lab.log_dir)]
    return DockerEngine(lab.folder / "docker.sock", argv, lab.env)


@pytest.fixture
def docker(lab: Lab) -> Iterator[DockerEngine]:
    engine = engine_of(lab)
    yield engine
    engine.close()


def start(lab: Lab, docker: DockerEngine, *programs: str, **settings: object) -> None:
    lab.start(*programs, container={"socket": str(docker.path), "id": NAME}, **settings)


def test_a_round_in_a_container_sends_the_same_messages_as_on_a_host(lab: Lab, docker: DockerEngine) -> None:
    program = """
        log(events.INIT_START)
        train(1, 30)
        log(events.FINISHED)
    """
    start(lab, docker, program, program)
    lab.end()
    assert lab.of("fault", "warning") == []
    assert sorted((m["rank"], m["code"], m["cause"]) for m in lab.of("exit")) == [(0, 0, None), (1, 0, None)]
    assert [m["event"] for m in lab.of("perflog") if m["rank"] == 0] == ["INIT_START", "FINISHED"]
    numbers = [m["seq"] for m in lab.messages if "seq" in m]
    assert numbers == list(range(1, len(numbers) + 1))
    assert json.loads((lab.log_dir / "rank1.exit.json").read_text())["code"] == 0
    assert docker.removed.is_set()
    assert not (lab.log_dir / "inner.sock").exists()


def test_a_failed_rank_in_a_container_is_reported(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER, "import no_such_module")
    fault = lab.wait_for("fault")
    lab.end()
    assert (fault["kind"], fault["rank"]) == ("crash", 1)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in fault["sentence"]
    assert lab.exit(0)["cause"] == "stopped"
    assert len(lab.of("fault")) == 1
    assert docker.removed.is_set()


def test_a_killed_container_is_reported(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER, FOREVER)
    lab.wait_for_start(1)
    assert docker.main is not None
    docker.main.kill()
    fault = lab.wait_for("fault")
    lab.end()
    assert fault["kind"] == "container"
    assert fault["sentence"].startswith("the container of ranks 0 to 1 was killed (exit code 137)")
    assert {(m["rank"], m["code"], m["cause"]) for m in lab.of("exit")} == {(0, None, "crash"), (1, None, "crash")}
    assert json.loads((lab.log_dir / "rank1.exit.json").read_text())["cause"] == "crash"
    assert docker.removed.is_set()


def test_a_container_over_its_memory_limit_is_reported(lab: Lab, docker: DockerEngine) -> None:
    docker.oom_killed = True
    start(lab, docker, FOREVER)
    lab.wait_for_start()
    assert docker.main is not None
    docker.main.kill()
    sentence = lab.wait_for("fault")["sentence"]
    assert sentence.startswith("the container of rank 0 exceeded its memory limit (exit code 137)")
    lab.end()


def test_a_container_that_cannot_start_is_reported_with_the_reason(lab: Lab, docker: DockerEngine) -> None:
    docker.refusals["start"] = "no space left on device"
    start(lab, docker, FOREVER)
    fault = lab.wait_for("fault")
    lab.end()
    assert fault["kind"] == "container"
    assert "the container of rank 0 could not be started: Docker refused POST" in fault["sentence"]
    assert "no space left on device" in fault["sentence"]
    assert docker.removed.is_set()


def test_a_container_without_an_agent_is_reported_with_its_last_line(lab: Lab, docker: DockerEngine) -> None:
    docker.argv = [sys.executable, "-c", "import sys; sys.exit('no module named flagperf_driver')"]
    start(lab, docker, FOREVER)
    sentence = lab.wait_for("fault")["sentence"]
    lab.end()
    assert sentence == (
        "the container of rank 0 ended with exit code 1; its last line: no module named flagperf_driver"
    )
    assert docker.removed.is_set()


def test_a_container_that_hangs_before_its_agent_starts_is_removed_with_the_round(
    lab: Lab, docker: DockerEngine
) -> None:
    docker.argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
    start(lab, docker, FOREVER)
    lab.wait_for("beat")
    lab.wait_for("beat", seq=2)
    lab.send({"op": "stop", "reason": "enough"})
    lab.end()
    assert lab.exit(0)["cause"] == "stopped"
    assert docker.removed.is_set()


def test_a_container_that_cannot_be_removed_yet_is_a_warning(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, "while not Path('go').exists(): time.sleep(0.01)\nlog(events.FINISHED)")
    lab.wait_for_start()
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


def test_the_container_of_a_killed_agent_is_removed(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER)
    lab.wait_for_start()
    lab.agent.kill()
    assert docker.removed.wait(10)
    lab.wait_until_empty()


def test_ranks_end_with_a_killed_agent_even_without_the_engine(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER)
    lab.wait_for_start()
    docker.refusals[""] = "gone"
    lab.agent.kill()
    lab.wait_until_empty()
    assert not docker.removed.is_set()


def test_the_container_of_a_lost_controller_is_removed_after_the_lease(lab: Lab, docker: DockerEngine) -> None:
    lab.hello(lease_s=0.5)
    start(lab, docker, FOREVER)
    lab.wait_for_start()
    lab.vanish()
    assert lab.agent.wait(10) == 0
    assert docker.removed.is_set()
    assert json.loads((lab.log_dir / "agent.json").read_text())["fault"]["kind"] == "lost_controller"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_files_of_root_in_a_container_are_given_to_the_folders_owner(lab: Lab, docker: DockerEngine) -> None:
    os.chown(lab.log_dir, 12345, 12345)
    start(lab, docker, "Path('made').mkdir(); Path('made/it').touch()")
    lab.end()
    owners = {path.name: path.stat().st_uid for path in lab.log_dir.rglob("*")}
    assert {owners[name] for name in ("made", "it", "rank0.out.log", "rank0.exit.json")} == {12345}


def test_a_paused_container_is_removed(tmp_path: Path) -> None:
    with Lab(tmp_path, patch="from flagperf_driver.node import silence; silence.CONTAINER_S = 2") as lab:
        docker = engine_of(lab)
        start(lab, docker, FOREVER)
        lab.wait_for_start()
        assert docker.main is not None
        os.kill(docker.main.pid, signal.SIGSTOP)
        fault = lab.wait_for("fault")
        lab.end()
        assert fault["sentence"].startswith("the container of rank 0 has sent nothing for 2 s: it is paused")
        assert docker.removed.is_set()
        docker.close()


def test_a_container_with_a_frozen_agent_is_removed_after_the_grace(lab: Lab, docker: DockerEngine) -> None:
    start(lab, docker, FOREVER, grace_s=-18)  # 2 of the 20 seconds after the grace remain
    lab.wait_for_start()
    assert docker.main is not None
    os.kill(docker.main.pid, signal.SIGSTOP)
    with suppress(ProcessLookupError):
        lab.send({"op": "stop"})
    lab.end()
    assert docker.removed.is_set()
    assert lab.exit(0)["cause"] == "stopped"
