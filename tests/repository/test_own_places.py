"""A session of tests that leaves something outside its own places fails, and says what; each with its control."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from flagperf_driver.node.folder import cache_root
from tests.helpers.processes import kill

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests import own_places
own_places.move_in()
own_places._PATIENCE_S = 0.5
own_places.is_alone = lambda: {alone}
def pytest_configure(config):
    own_places.check_session(config)
"""
# What a test may leave: the user's cache and temporary folder come from the environment as it was.
SHARED = {
    "(cache / 'venv/plain-1').mkdir(parents=True)": "home/.cache/pytest-flagperf/venv/plain-1",
    "(temporary / 'torchelastic_x').mkdir()": "tmp/torchelastic_x",
    "(temporary / 'pytest-flagperf-0/rounds/r1').mkdir(parents=True)": "tmp/pytest-flagperf-0/rounds/r1",
}
OWN = {
    "Path(f'pid.{subprocess.Popen([*SLEEP]).pid}').touch()": "sleep 60",
    "Path(os.environ['TMPDIR'], 'pytest-flagperf-0/tmp/r1').mkdir(parents=True)": "pytest-flagperf-0/tmp/r1",
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

    def run(self, leaves: Iterable[str], *arguments: str, alone: bool = True) -> subprocess.CompletedProcess[str]:
        (self.folder / "conftest.py").write_text(CONFTEST.format(alone=alone))
        words = {"cache": str(self.cache), "temporary": str(self.temporary), "leaves": "; ".join(leaves)}
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
        kill(int(pid.suffix[1:]))


def test_what_a_session_leaves_fails_it_and_is_listed_once(session: Session) -> None:
    done = session.run([*SHARED, *OWN], "-n1", "--strict")
    lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR: left by these tests: ")]
    assert "1 passed" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr
    for expected in (*SHARED.values(), *OWN.values()):
        assert len([line for line in lines if line.endswith(expected)]) == 1, expected
    assert not list(session.temporary.glob("fpt-*"))


def test_what_another_run_may_have_left_fails_only_a_strict_session(session: Session) -> None:
    first, *others = SHARED
    assert session.run([first]).returncode == 0
    assert session.run(others, "--strict", alone=False).returncode == 0
    assert session.run(OWN, alone=False).returncode == 1, "what is in its own places fails every session"


def test_these_tests_have_places_of_their_own(tmp_path: Path) -> None:
    own = Path(os.environ["FLAGPERF_TEST_SESSION"])
    assert cache_root() == own / "home" / ".cache" / "pytest-flagperf"
    assert Path.home() == own / "home"
    assert Path(tempfile.gettempdir()) == own / "tmp"
    assert not tmp_path.is_relative_to(own)  # a failed test's files stay for its user
    (tmp_path / "test_it.py").write_text("def test_it(tmp_path): print(tmp_path)")
    argv = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", "--rootdir=.", "test_it.py"]
    assert f"{own}/tmp/" in subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
