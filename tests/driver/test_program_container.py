"""A round in a container that lives as long as a program: the same messages as on a host, and nothing is left."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flagperf_driver.node.folder import CONTAINER_LOG
from tests.driver.lab import Lab
from tests.processes import running

pytestmark = pytest.mark.integration

FOREVER = "train(1, 10**6)"
# A program that stays the parent of what runs in its container, as Apptainer and srun do.
PARENT = """
import os, signal, subprocess, sys
print("INFO: starting", flush=True)
child = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait() % 256)
"""


def start(lab: Lab, *programs: str, argv: Sequence[str] = (), **settings: object) -> None:
    inner = [sys.executable, "-m", "flagperf_driver.node.agent.main", "--inner", str(lab.log_dir)]
    argv = argv or [sys.executable, "-c", PARENT, *inner]
    lab.start(*programs, container={"argv": argv, "env": {"FROM_ORDER": "yes"}}, **settings)


def test_a_round_sends_the_same_messages_as_on_a_host(lab: Lab) -> None:
    program = """
        log(events.INIT_START)
        print(os.environ["FROM_ORDER"], "TMPDIR" in os.environ, flush=True)
        train(1, 30)
        log(events.FINISHED)
    """
    start(lab, program, program)
    lab.end()
    assert lab.of("fault", "warning") == []
    assert sorted((m["rank"], m["code"], m["cause"]) for m in lab.of("exit")) == [(0, 0, None), (1, 0, None)]
    assert [m["event"] for m in lab.of("perflog") if m["rank"] == 0] == ["INIT_START", "FINISHED"]
    assert "yes True" in (lab.log_dir / "rank1.out.log").read_text()
    assert json.loads((lab.log_dir / "rank1.exit.json").read_text())["code"] == 0
    lab.wait_until_empty()


def test_a_killed_program_is_reported_and_takes_its_ranks_along(lab: Lab) -> None:
    start(lab, "print(os.environ['TMPDIR'], flush=True); " + FOREVER, FOREVER)
    lab.wait_for_start(1)
    lab.wait_for_line(0, "/tmp/")
    folder = Path((lab.log_dir / "rank0.out.log").read_text().split()[0])
    assert folder.is_dir()
    (parent,) = (process.pid for process in running() if PARENT in process.words and process.pid in lab.living())
    os.kill(parent, signal.SIGKILL)
    fault = lab.wait_for("fault")
    lab.end()
    assert fault["kind"] == "container"
    assert fault["sentence"].startswith("the container of ranks 0 to 1 was killed by signal 9; its last line: INFO")
    assert {(m["rank"], m["cause"]) for m in lab.of("exit")} == {(0, "crash"), (1, "crash")}
    lab.wait_until_empty()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["/no/such/apptainer"], "could not be started: /no/such/apptainer: No such file or directory"),
        (
            [sys.executable, "-c", "import sys; sys.exit('FATAL: no image')"],
            "exit code 1; its last line: FATAL: no image",
        ),
    ],
)
def test_a_container_that_cannot_start_is_reported_with_the_reason(lab: Lab, argv: list[str], problem: str) -> None:
    start(lab, FOREVER, argv=argv)
    fault = lab.wait_for("fault")
    lab.end()
    assert fault["kind"] == "container"
    assert problem in fault["sentence"]


def test_a_program_without_an_agent_is_ended_with_the_round(lab: Lab) -> None:
    start(lab, FOREVER, argv=[sys.executable, "-c", "import time; time.sleep(1000)"])
    lab.wait_for("beat", seq=2)
    lab.send({"op": "stop", "reason": "enough"})
    lab.end()
    assert lab.exit(0)["cause"] == "stopped"
    lab.wait_until_empty()


def test_the_program_of_a_killed_agent_ends(lab: Lab) -> None:
    start(lab, FOREVER)
    lab.wait_for_start()
    lab.agent.kill()
    lab.wait_until_empty()


def test_the_programs_output_is_not_one_of_the_rounds_logs(lab: Lab) -> None:
    start(lab, "train(1, 30); log(events.FINISHED)")
    lab.wait_for_start()
    assert "INFO: starting" in (lab.log_dir / CONTAINER_LOG).read_text()
    lab.end()
    assert not (lab.log_dir / CONTAINER_LOG).exists()
