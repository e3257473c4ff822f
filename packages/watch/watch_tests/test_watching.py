"""``flagperf watch`` beside a real run, in a terminal."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.pseudo_terminal import Terminal
from tests.helpers.waiting import until
from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture
from watch_tests.watched_run import start_run, toy_tree, watch

pytestmark = pytest.mark.slow
Run = subprocess.Popen[bytes]


@pytest.fixture
def run(tmp_path: Path, install: Callable[[str], None]) -> Iterator[Run]:
    """A run of three cases in three workers, whose record exists."""
    install("watch")
    toy_tree(tmp_path, base="step_s = 0.02\n")
    process = start_run(tmp_path, "-m", "converges", "-k", "1x1", "-n", "3")
    try:
        until(lambda: process.poll() is not None or list(tmp_path.glob("reports/run*/live/*.jsonl")), "the live record")
        yield process
    finally:
        process.kill()
        process.wait()
        print((tmp_path / "pytest.log").read_text())


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_three_cases_are_watched_to_their_end(run: Run, terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(wide := watch(tmp_path))
    old = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    terminals.append(narrow := watch(tmp_path, columns=60, rows=16, env=old))
    text = wide.wait_for(lambda text: "3 running" in text and text.count("  loss ") == 3 and " W, " in text)
    for name in ("alpha", "beta", "gamma"):
        assert f"{name}:plain:CPU:1:1:1 round 1" in text
    assert any("\u2800" < char <= "\u28ff" for char in text)
    narrow.wait_for(lambda text: "3 running" in text and "loss" in text)
    assert narrow.text().isascii()
    narrow.type("q")
    assert narrow.end() == 0
    assert run.poll() is None
    (tmp_path / "go").touch()
    assert wide.end(120) == 0
    assert "flagperf: 3 of 3 cases passed" in " ".join(wide.text().split())
    assert run.wait(60) == 0
    log = (tmp_path / "pytest.log").read_text()
    for part in ("preflight: 3 cases on 1 host", "] alpha:plain:CPU:1:1:1 round 1  step 1  loss "):
        assert part in log
    assert log.count("  finished  after ") == 3


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
