"""A session of tests that leaves a process or a rank's folder fails, and says what."""

import os
import subprocess
import sys
import tempfile
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
def pytest_configure(config):
    own_places.check_session(config)
"""
LEAVES = {
    "Path(f'pid.{subprocess.Popen([*SLEEP]).pid}').touch()": "sleep 60",
    "Path(os.environ['TMPDIR'], 'pytest-flagperf-0/tmp/r1').mkdir(parents=True)": "pytest-flagperf-0/tmp/r1",
}
TEST = """
import os, subprocess
from pathlib import Path

SLEEP = ("sleep", "60")

def test_it():
    {}
"""


def run(folder: Path, leaves: str) -> subprocess.CompletedProcess[str]:
    """Run a session of pytest of its own."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TEST.format(leaves))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLAGPERF_", "PYTEST_"))}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_it.py", "-n1"]
    env = {**kept, "PYTHONPATH": str(REPO)}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_what_a_session_leaves_fails_it_and_is_listed_once(tmp_path: Path) -> None:
    assert run(tmp_path, "pass").returncode == 0
    done = run(tmp_path, "; ".join(LEAVES))
    for pid in tmp_path.glob("pid.*"):
        kill(int(pid.suffix[1:]))
    lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR: left by these tests: ")]
    assert "1 passed" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr
    assert [sum(line.endswith(left) for line in lines) for left in LEAVES.values()] == [1, 1]


def test_these_tests_have_places_of_their_own(tmp_path: Path) -> None:
    own = Path(os.environ["FLAGPERF_TEST_SESSION"])
    assert cache_root() == own / "home" / ".cache" / "pytest-flagperf"
    assert Path.home() == own / "home"
    assert Path(tempfile.gettempdir()) == own / "tmp"
    assert not tmp_path.is_relative_to(own)  # a failed test's files stay for its user
    (tmp_path / "test_it.py").write_text("def test_it(tmp_path): print(tmp_path)")
    argv = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", "--rootdir=.", "test_it.py"]
    assert f"{own}/tmp/" in subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
