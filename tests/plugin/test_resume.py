"""Interrupted runs on this machine and --resume: rounds that are continued, skipped or run again."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results import verification
from tests.helpers.processes import running
from tests.helpers.trees import set_options, write
from tests.helpers.waiting import until

from .conftest import SHARED_TRAINING, Toy

pytestmark = pytest.mark.slow
# A training that runs until it is stopped.
FOREVER = ("--set=step_s=0.1", "--set=max_steps=100000", "--set=learning_rate=0")
DIES = """
import os
from pytest_flagperf.running import replay
replay.draw = lambda _: os.kill(os.getpid(), 9)
"""
ONE = ("-k", "converges", "--nodes=1x1")


class Local:
    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    def run(self, *arguments: str, code: int = 0) -> str:
        going = self.toy.start(*arguments)
        assert going.wait() == code, going.text
        return going.text

    @property
    def output(self) -> str:
        return self.toy.going[-1].text

    def resume(self, *arguments: str, tests: str = "suites", code: int = 0) -> str:
        return self.run(tests, f"--resume={self.run_directory}", *arguments, code=code)

    @property
    def run_directory(self) -> Path:
        return self.toy.runs[-1]

    def rounds(self, name: str = "round.json") -> dict[str, Any]:
        return {
            f"{path.parent.parent.name}/{path.parent.name}": json.loads(path.read_text())
            for path in sorted(self.toy.root.glob(f"reports/run*/*/*round*/{name}"))
        }

    def wait_for(self, ready: Callable[[], object], event: str) -> None:
        self.toy.going[-1].wait_for(ready, event)

    def wait_for_steps(self, case: str = "*", count: int = 2) -> None:
        self.wait_for(lambda: self.steps(case) >= count, f"{count} steps of {case}")

    def steps(self, case: str = "*") -> int:
        logs = self.toy.root.glob(f"reports/run*/{case}/round*/*/rank0.out.log")
        return sum(path.read_text(errors="replace").count("STEP_END") for path in logs)

    def kill(self) -> None:
        self.toy.going[-1].kill()

    def processes(self) -> list[str]:
        """Return the agents and ranks of this tree's rounds."""
        reports = str(self.toy.root / "reports")
        own = (process for process in running() if reports in " ".join([*process.environment.values(), process.folder]))
        return [f"{process.pid}: {process.line[:100]}" for process in own]

    def assert_nothing_runs(self, within_s: float = 60) -> None:
        until(lambda: not self.processes(), "the end of the agents and ranks", within_s)


@pytest.fixture
def local(toy: Toy) -> Local:
    return Local(toy)


def test_without_a_lease_local_ranks_end_with_pytest(local: Local) -> None:
    local.toy.start("suites", *ONE, *FOREVER)
    local.wait_for_steps()
    assert local.processes()  # the control
    local.kill()
    local.assert_nothing_runs()
    local.resume(*ONE, "--set=step_s=0.01")
    assert {end["state"] for end in local.rounds().values()} == {"finished"}
    assert list(local.rounds("plan.json")) == [
        "alpha_plain_CPU_1_1_1/failed1-round1",
        "alpha_plain_CPU_1_1_1/round1",
        "beta_plain_CPU_1_1_1/round1",
    ]


def test_with_a_lease_local_ranks_continue_and_are_resumed(local: Local) -> None:
    set_options(local.toy.root, lease_time=60)
    local.toy.start("suites/alpha", *ONE, "--set=step_s=0.3")
    local.wait_for_steps()
    local.kill()
    steps = local.steps()
    time.sleep(1)
    assert local.steps() > steps
    output = local.resume(*ONE)
    assert "alpha_plain_CPU_1_1_1 round1 still runs: resuming it" in output
    (end,) = local.rounds().values()
    assert (end["state"], end["fault"]) == ("finished", None)
    (outcome,) = local.rounds("outcome.json").values()
    assert len(outcome["steps"]) == local.steps() == 16
    assert len(list(local.run_directory.glob("*/round1/*/start_plain_task.log"))) == 1
    local.assert_nothing_runs()


def test_the_round_of_ranks_that_ended_meanwhile_is_finished(local: Local) -> None:
    """Their logs, exit codes and FINISHED records are complete, although no controller was running."""
    set_options(local.toy.root, lease_time=60)
    local.toy.start("suites/alpha", *ONE, "--set=step_s=0.1")
    local.wait_for_steps()
    local.kill()
    until(lambda: local.steps() == 16, "the last step")
    time.sleep(1)
    local.resume(*ONE)
    (end,) = local.rounds().values()
    assert (end["state"], end["hosts"][0]["ranks"][0]["code"]) == ("finished", 0)
    local.assert_nothing_runs()


def test_finished_rounds_are_skipped_and_failed_rounds_run_again(local: Local) -> None:
    program = local.toy.root / "suites" / "beta" / "plain" / "run_pretraining.py"
    training = program.read_text()
    program.write_text(training.replace("driver.run(main)", "sys.exit(9)"))
    local.run("suites", *ONE, "--repeat=2", code=1)
    before = local.rounds("plan.json")
    when = {name: (local.run_directory / name / "plan.json").stat().st_mtime_ns for name in before}
    assert len(before) == 4
    program.write_text(training)
    started = json.loads((local.run_directory / "results.json").read_text())["run"]["started_ms"]
    output = local.resume(*ONE, "-n2")
    assert json.loads((local.run_directory / "results.json").read_text())["run"]["started_ms"] == started
    assert output.count("runs again: beta:plain:CPU:1:1:2") == 2
    assert "runs again: alpha" not in output
    assert set(local.rounds("plan.json")) == set(before) | {
        f"beta_plain_CPU_1_1_2/failed1-round{number}" for number in (1, 2)
    }
    for name, moment in when.items():
        again = (local.run_directory / name / "plan.json").stat().st_mtime_ns != moment
        assert again == name.startswith("beta"), name


def test_resuming_a_complete_run_only_writes_its_reports_again(local: Local) -> None:
    local.run("suites/alpha", "--nodes=1x1,1x2")
    ends = {path: path.stat().st_mtime_ns for path in local.run_directory.glob("*/round*/round.json")}
    for name in ("results.json", "results.csv", "report.html", "junit.xml"):
        (local.run_directory / name).unlink()
    output = local.resume(tests="suites/alpha")
    assert "5 passed" in output
    assert "has no effect" not in output, "the control"
    assert "kept, measured with" not in output, "the control"
    assert {path: path.stat().st_mtime_ns for path in local.run_directory.glob("*/*round*/round.json")} == ends
    for name in ("results.json", "results.csv", "report.html", "junit.xml"):
        assert "alpha:plain:CPU:1:2:1" in (local.run_directory / name).read_text(), name
    assert len(local.toy.runs) == 1
    assert verification.verify(local.run_directory) == (len(ends), ())


@pytest.mark.parametrize("left", ["states", "nothing", "clean process"])
def test_a_replay_whose_controller_died_is_repeated_or_its_round_runs_again(local: Local, left: str) -> None:
    set_options(local.toy.root, lease_time=60)
    local.toy.suite("alpha", "max_steps = 200\neval_steps = 20\n", SHARED_TRAINING)
    dies = write(local.toy.root, "suites/conftest.py", DIES if left != "clean process" else "")
    options = ("-k", "throughput", "--nodes=1x1")
    going = local.toy.start("suites/alpha", *options, "--replay", "--set=step_s=0.03")
    if left == "clean process":
        local.wait_for(lambda: list(local.toy.root.glob("reports/*/*/round1_replay/*/rank0*")), "its start")
        going.kill()
    assert going.wait() == -signal.SIGKILL
    dies.unlink()
    [case] = (states.parent for states in local.run_directory.glob("*/round1.states"))
    if left == "nothing":
        shutil.rmtree(case / "round1.states")
    output = local.resume(*options)
    assert "flagperf: replay missing: alpha:plain:CPU:1:1:1: no " in output
    assert ("round1_replay still runs: resuming it" in output) == (left == "clean process")
    assert ("round 1: runs again: the clean process did not finish" in output) == (left == "nothing")
    failed = ["failed1-round1", "failed1-round1_replay"] if left == "nothing" else []
    assert sorted(path.name for path in case.glob("*round1*")) == [*failed, "round1", "round1_replay"]
    [verdicts] = (json.loads(path.read_text())["verdicts"] for path in case.glob("verdicts/*throughput*"))
    assert {verdict["got"] for verdict in verdicts if verdict["name"] == "repeatable"} == {"equal bit by bit"}
    assert verification.verify(local.run_directory)[1] == ()
    local.assert_nothing_runs()


def test_the_command_line_overrides_stored_options(local: Local) -> None:
    local.run("suites/alpha", *ONE, "--set=fault=exit", code=1)
    local.resume(*ONE, code=1)  # the control: the fault is stored
    local.resume(*ONE, "--set=max_steps=25")
    plans = local.rounds("plan.json")
    assert [plan["values"]["fault"]["value"] for plan in plans.values()] == ["exit", "exit", ""]
    assert json.loads((local.run_directory / "options.json").read_text())["set"] == ["max_steps=25"]


def test_what_a_resumed_run_ignores_is_said(local: Local) -> None:
    local.run("suites/alpha", "--nodes=1x1")
    output = local.resume("--nodes=1x2", "--set=speed=90", tests="suites/alpha")
    assert "flagperf: --nodes=1x2 has no effect: --resume continues the cases of the run" in output
    assert ": 1 finished round kept, measured with other values: config: speed 100.0 -> 90" in output
