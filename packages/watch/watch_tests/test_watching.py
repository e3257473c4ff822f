"""``flagperf watch`` beside a real run, in a terminal."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.pseudo_terminal import Terminal
from tests.plugin.conftest import Going, Toy
from tests.plugin.conftest import toy as toy  # a fixture

pytestmark = pytest.mark.slow
PROBE = '''
"""Devices of which the tool tells the power and the temperature."""
import json

DEVICES = [{"device": device, "name": "CPU", "power": 240, "temperature": 60} for device in range(8)]
COMMAND = ["echo", json.dumps(DEVICES)]
EVERY_S = 1


def parse(text):
    return json.loads(text)
'''
SLEEP = "time.sleep(config.step_s)"
WAIT = "time.sleep(config.step_s if step < 100 or Path({go!r}).exists() else 0.2)"


@pytest.fixture
def run(toy: Toy, install: Callable[[str], None]) -> Iterator[Going]:
    """A run of three cases in three workers, whose record exists; they are slow until the file ``go`` exists."""
    install("watch")
    toy.suite("gamma")
    (toy.root / "vendors" / "cpu" / "probe.py").write_text(PROBE)
    for program in toy.root.glob("suites/*/plain/run_pretraining.py"):
        text = program.read_text()
        assert SLEEP in text
        program.write_text(text.replace(SLEEP, WAIT.format(go=str(toy.root / "go"))))
    settings = ("--set=learning_rate=0.002", "--set=max_steps=1000", "--set=step_s=0.02")
    going = toy.start("suites", "-m", "converges", "-k", "1x1", "-n", "3", *settings)
    going.wait_for(lambda: list(toy.root.glob("reports/run*/live/*.jsonl")), "the live record")
    yield going
    print(going.text)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_three_cases_are_watched_to_their_end(run: Going, terminals: list[Terminal], toy: Toy) -> None:
    watch = ["flagperf", "watch"]
    terminals.append(wide := Terminal(watch, cwd=toy.root))
    old = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    terminals.append(narrow := Terminal(watch, columns=60, rows=16, cwd=toy.root, env=old))
    text = wide.wait_for(lambda text: "3 running" in text and text.count("  loss ") == 3 and " W, " in text)
    for name in ("alpha", "beta", "gamma"):
        assert f"{name}:plain:CPU:1:1:1 round 1" in text
    assert any("\u2800" < char <= "\u28ff" for char in text)
    narrow.wait_for(lambda text: "3 running" in text and "loss" in text)
    assert narrow.text().isascii()
    narrow.type("q")
    assert narrow.end() == 0
    assert run.process.poll() is None
    (toy.root / "go").touch()
    assert wide.end(120) == 0
    assert "flagperf: 3 of 3 cases passed" in " ".join(wide.text().split())
    assert run.wait(60) == 0
    for part in ("preflight: 3 cases on 1 host", "] alpha:plain:CPU:1:1:1 round 1  step 1  loss "):
        assert part in run.text
    assert run.text.count("  finished  after ") == 3


def test_cases_that_nobody_selected_are_not_shown(toy: Toy, install: Callable[[str], None]) -> None:
    """tests/plugin/test_page.py has the same check for the reports of such a run."""
    install("watch")
    toy.config("alpha", "1x1", "learning_rate = 0.05\n")  # beta and 1x2 have no config; both are only collected
    toy.run("suites", "-k", "alpha and 1:1:1", "--vendor=acme", "--synthetic").assert_outcomes(passed=1)
    (run,) = toy.runs
    text = toy.pytester.run(Path(sys.executable).with_name("flagperf"), "watch", "--once", run).stdout.str()
    assert "alpha" in text
    assert "beta" not in text
    assert "1:2:1" not in text
    assert "not run" not in text
