"""``flagperf watch`` beside a real run, in a terminal."""

from collections.abc import Callable, Iterator

import pytest

from tests.helpers.pseudo_terminal import Terminal
from tests.plugin.conftest import Going, Toy
from tests.plugin.conftest import toy as toy  # a fixture

pytestmark = pytest.mark.slow
SLEEP = "time.sleep(config.step_s)"
WAIT = "time.sleep(config.step_s if step < 100 or Path({go!r}).exists() else 0.2)"


@pytest.fixture
def run(toy: Toy, install: Callable[[str], None]) -> Iterator[Going]:
    """A run of three cases in three workers, whose record exists; they are slow until the file ``go`` exists."""
    install("watch")
    toy.suite("gamma")
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
    text = wide.wait_for(lambda text: "3 running" in text and text.count("  loss ") == 3)
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
