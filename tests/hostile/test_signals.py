"""Signals and closed terminals: a run ends in order and leaves its reports, and no process keeps a device."""

import fcntl
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.helpers.pseudo_terminal import Terminal
from tests.helpers.waiting import until
from tests.plugin.conftest import Going, Toy
from tests.plugin.conftest import toy as toy  # a fixture
from tests.plugin.test_resume import ONE, Local

pytestmark = pytest.mark.slow
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", *ONE)
ENDLESS = "step_s = 0.1\nmax_steps = 100000\nlearning_rate = 0\n"


@pytest.fixture
def local(toy: Toy) -> Local:
    """A tree in which the case of alpha finishes and that of beta trains until it is ended."""
    (toy.root / "suites" / "beta" / "plain" / "config" / "_small.py").write_text(ENDLESS)
    return Local(toy)


def in_terminal(local: Local, argv: Sequence[str]) -> Terminal:
    terminal = Terminal(argv, cwd=local.toy.root)
    local.toy.going.append(Going(terminal.process, local.toy.root / "terminal.log"))
    return terminal


def wait_for_beta(local: Local) -> None:
    until(lambda: local.steps("beta*") >= 2, "steps of beta")
    assert local.processes()  # the control: this is how the processes of a round are found


def assert_ended_in_order(local: Local) -> None:
    """The finished case is in all reports, the other one's round is interrupted, nothing runs."""
    local.assert_nothing_runs(30)
    for name in ("results.json", "results.csv", "report.html", "junit.xml"):
        until((local.run_directory / name).is_file, name)
        assert "alpha:plain:CPU:1:1:1" in (local.run_directory / name).read_text(), name
    rounds = local.rounds()
    assert rounds["alpha_plain_CPU_1_1_1/round1"]["state"] == "finished"
    assert rounds["beta_plain_CPU_1_1_1/round1"]["state"] == "interrupted"


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_run_whose_terminal_is_closed_ends_in_order(local: Local, workers: tuple[str, ...]) -> None:
    terminal = in_terminal(local, [*PYTEST, *workers])
    # The dot of alpha's test: with workers, the reports say nothing of a test whose end has not arrived.
    dot = re.compile(r"(?m)(^|\x1b\[K|\x1b\[\d+G)\.")
    until(lambda: terminal.read(0.05) and dot.search(terminal.printed), "the dot")
    wait_for_beta(local)
    terminal.hang_up()
    assert terminal.process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert_ended_in_order(local)
    locks = list((local.toy.root / "leases").glob("*.lock"))
    assert locks
    for path in locks:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no process keeps the device


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, ("-n2",)), (signal.SIGQUIT, ())])
def test_an_interrupted_run_ends_in_order_and_can_be_resumed(
    local: Local, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    going = local.toy.start("suites", *ONE, "-v", *workers)
    local.wait_for(lambda: "PASSED" in local.output, "the first case's end")
    wait_for_beta(local)
    going.process.send_signal(number)
    assert going.wait() == pytest.ExitCode.INTERRUPTED, local.output
    assert_ended_in_order(local)
    assert re.search(r"(?m)^flagperf: interrupted: 1 of 2 cases passed, 1 not finished", local.output), local.output
    assert re.search(r"(?m)^--resume=reports/run", local.output)
    (local.toy.root / "suites" / "beta" / "plain" / "config" / "_small.py").write_text("")
    assert "runs again: beta:plain:CPU:1:1:1" in local.resume(*ONE)


def test_a_run_under_nohup_outlives_its_terminal(local: Local) -> None:
    (local.toy.root / "suites" / "beta" / "plain" / "config" / "_small.py").write_text("step_s = 0.2\n")
    terminal = in_terminal(local, ["nohup", *PYTEST])
    wait_for_beta(local)
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(60) == 0, (local.toy.root / "nohup.out").read_text()
    assert "2 passed" in (local.toy.root / "nohup.out").read_text()
    assert {end["state"] for end in local.rounds().values()} == {"finished"}


def test_a_run_whose_output_has_no_reader_leaves_its_reports(local: Local) -> None:
    """As after a dropped SSH session without a terminal: no signal is sent, the next line cannot be written."""
    (local.toy.root / "suites" / "beta" / "plain" / "config" / "_small.py").write_text("step_s = 0.2\n")
    process = subprocess.Popen([*PYTEST, "-v"], cwd=local.toy.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    local.toy.going.append(Going(process, local.toy.root / "pipe.log"))
    wait_for_beta(local)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) != 0
    local.assert_nothing_runs()
    results = json.loads((local.run_directory / "results.json").read_text())
    assert [case["case"] for case in results["cases"]] == ["alpha:plain:CPU:1:1:1", "beta:plain:CPU:1:1:1"]
    assert "alpha:plain:CPU:1:1:1" in (local.run_directory / "report.html").read_text()
