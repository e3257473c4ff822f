"""``flagperf watch`` beside a real run, in a terminal."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture
from tests.pseudo_terminal import Terminal
from tests.waiting import until
from watch_tests.watched_run import start_run, toy_tree, watch

pytestmark = pytest.mark.slow
Run = subprocess.Popen[bytes]


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[Run]:
    """Start a run, and yield it when its record exists. If it does not end, its log says what its threads do."""
    process = start_run(tmp_path, "-m", "converges", "-k", "1x1", *arguments)
    try:
        until(lambda: process.poll() is not None or list(tmp_path.glob("reports/run*/live/*.jsonl")), "the live record")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait()
        print((tmp_path / "pytest.log").read_text())


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_three_cases_are_watched(install: Callable[[str], None], terminals: list[Terminal], tmp_path: Path) -> None:
    install("watch")
    toy_tree(tmp_path, base="step_s = 0.02\n")
    with running(tmp_path, "-n", "3") as run:
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


def test_a_run_is_watched_to_its_end(install: Callable[[str], None], terminals: list[Terminal], tmp_path: Path) -> None:
    install("watch")
    toy_tree(tmp_path, cases=("alpha",), base="step_s = 0.02\n")
    with running(tmp_path) as run:
        terminals.append(terminal := watch(tmp_path))
        terminal.wait_for(lambda text: "1 running" in text and "  loss " in text)
        (tmp_path / "go").touch()
        assert terminal.end(120) == 0
        assert "flagperf: 1 of 1 case passed" in " ".join(terminal.text().split())
        assert run.wait(60) == 0
    log = (tmp_path / "pytest.log").read_text()
    for part in ("preflight: 1 case on 1 host", "alpha:plain:CPU:1:1:1 round 1  step 1  loss ", "  finished  after "):
        assert part in log


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
