"""A session of tests that leaves something outside its own places fails, and says what; each with its control."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_flagperf.hosts.deploy import cache_root

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests import own_places
own_places.move_in()
own_places._PATIENCE_S = 0.5
own_places.is_alone = lambda: {alone}
def pytest_configure(config):
    own_places.watch(config)
"""
# What a test may leave, by where: the user's cache and temporary folder come from the environment as it was.
LEAVES = {
    "nothing": "pass",
    "cache": "(cache / 'venv/plain-1').mkdir(parents=True)",
    "temporary": "(temporary / 'torchelastic_x').mkdir()",
    "round": "(temporary / 'pytest-flagperf-0/rounds/r1').mkdir(parents=True)",
    "process": "Path(f'pid.{subprocess.Popen([*SLEEP]).pid}').touch()",
    "own": "Path(os.environ['TMPDIR'], 'pytest-flagperf-0/tmp/r1').mkdir(parents=True)",
    "shared environment": "(cache / 'venv/pytorch-1').mkdir(parents=True)",
    "another framework's": "(cache / 'venv/paddle-1').mkdir(parents=True)",
    "another program": "(temporary / 'somebody').mkdir()",
}
TEST = """
import os, subprocess
from pathlib import Path

SLEEP = ("sleep", "60")

def test_it():
    cache, temporary = Path({cache!r}), Path({temporary!r})
    {leaves}
"""


class Session:
    """A session of pytest of its own, in a folder with a home and a temporary folder that stand for the user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "home/.cache/pytest-flagperf"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def run(self, leaves: str, *arguments: str, alone: bool = True) -> subprocess.CompletedProcess[str]:
        (self.folder / "conftest.py").write_text(CONFTEST.format(alone=alone))
        words = {"cache": str(self.cache), "temporary": str(self.temporary), "leaves": leaves}
        (self.folder / "test_it.py").write_text(TEST.format(**words))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLAGPERF_", "PYTEST_"))}
        places = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.temporary), "PYTHONPATH": str(REPO)}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_it.py", *arguments],
            cwd=self.folder,
            env={**kept, **places},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    yield Session(tmp_path)
    for pid in tmp_path.glob("pid.*"):
        os.kill(int(pid.suffix[1:]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("nothing", ""),
        ("shared environment", ""),
        ("another framework's", ""),
        ("another program", ""),
        ("cache", "home/.cache/pytest-flagperf/venv/plain-1"),
        ("temporary", "tmp/torchelastic_x"),
        ("round", "tmp/pytest-flagperf-0/rounds/r1"),
        ("process", "sleep 60"),
        ("own", "pytest-flagperf-0/tmp/r1"),
    ],
)
def test_what_a_session_leaves_fails_it(session: Session, what: str, found: str) -> None:
    done = session.run(LEAVES[what])
    lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR: left by these tests: ")]
    assert "1 passed" in done.stdout
    assert done.returncode == bool(found), done.stdout + done.stderr
    assert bool(lines) == bool(found)
    assert any(line.endswith(found) for line in lines) or not found
    assert not list(session.temporary.glob("fpt-*"))


def test_what_a_worker_leaves_fails_the_session_once(session: Session) -> None:
    done = session.run(LEAVES["cache"], "-n1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("left by these tests") == 1


def test_beside_another_run_nothing_shared_is_blamed_on_these_tests(session: Session) -> None:
    done = session.run(LEAVES["cache"], alone=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left by these tests or by another run beside them: " in done.stdout
    (session.folder / "tmp").mkdir(exist_ok=True)
    assert session.run(LEAVES["own"], alone=False).returncode == 1  # the control: its own places are its own


def test_these_tests_have_places_of_their_own(tmp_path: Path) -> None:
    own = Path(os.environ["FLAGPERF_TEST_SESSION"])
    assert cache_root() == own / "home" / ".cache" / "pytest-flagperf"
    assert Path.home() == own / "home"
    assert Path(tempfile.gettempdir()) == own / "tmp"
    assert not tmp_path.is_relative_to(own)  # a failed test's files stay for its user
