"""Config files that never end, or build huge values: each is an error that names file and line, and nothing is left."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest

from pytest_flagperf.config import ConfigError, load
from pytest_flagperf.config.assignments import MAX_BYTES, parse, read
from tests.conftest import REPO
from tests.processes import running

pytestmark = pytest.mark.integration

SHORT_S = 1.0
LOOPS = {
    "a = 1\nwhile True:\n    pass\n": "[23]",
    "a = 1\nb = sum(range(10 ** 14))\n": "2",
    "import time\ntime.sleep(1000)\n": "2",
    "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass\n": "[2346]",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass\n": "3",
    "a = 1\nb = 7 ** 7 ** 9\n": "2",
}
HUGE = {
    "a = 1\nb = [0] * 10 ** 10\n": "2: the file needs too much memory",
    "a = 1\nb = []\nwhile True:\n    b.append('x' * 1000000)\n": "4: the file needs too much memory",
    "a = [1] * 10\n" + "a = [a] * 10\n" * 9 + "b = a\n": "10: a is too large",
    "a = 1\nb = 'x' * 100000000\n": "2: b is too large",
    "a = 1\nb = []\nb.append(b)\n": "2: b is too large",
}


def refused(tmp_path: Path, text: str, limit_s: float = 10.0) -> str:
    file = tmp_path / "config_X9x1x8.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, time_limit_s=limit_s)
    (problem,) = caught.value.problems
    return problem


def left(word: str) -> list[str]:
    """Return the processes whose command line holds a word."""
    return [each.line for each in running() if word in each.line]


@pytest.mark.parametrize(("text", "line"), LOOPS.items(), ids=range(len(LOOPS)))
def test_a_file_that_never_ends_is_stopped_and_its_line_named(tmp_path: Path, text: str, line: str) -> None:
    problem = refused(tmp_path, text, SHORT_S)
    places = [f"{tmp_path}/config_X9x1x8.py:{number}: the file ran for longer than 1 s" for number in line.strip("[]")]
    assert any(problem.startswith(place) for place in places), problem
    assert left(str(tmp_path)) == []


@pytest.mark.parametrize(("text", "expected"), HUGE.items(), ids=range(len(HUGE)))
def test_a_file_that_builds_huge_values_is_an_error_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert refused(tmp_path, text).startswith(f"{tmp_path}/config_X9x1x8.py:{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os\nos._exit(3)\n", "the file ended its process (exit code 3)"),
        ("import os\nos._exit(0)\n", "the file ended its process (exit code 0)"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "the file ended its process (signal 11)"),
        ("raise BaseException('x')\n", "the file ended its process (exit code 1)"),
        ("class B(Exception):\n    def __str__(self):\n        raise ValueError\nraise B\n", "4: B: "),
    ],
)
def test_a_file_that_ends_its_process_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, text)


def test_processes_of_a_config_file_end_with_it(tmp_path: Path) -> None:
    mark = f"{tmp_path.name}-started"
    sleeps = f"[sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}]"
    text = f"import subprocess, sys\nsubprocess.Popen({sleeps})\na = 1\n"
    (tmp_path / "a.py").write_text(text)
    assert load(tmp_path / "a.py").names["a"].value == 1
    deadline = time.monotonic() + 30
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(mark) == []


def test_a_file_that_cannot_end_does_not_hold_its_folder_up(tmp_path: Path) -> None:
    """The output of the file's process does not change the reply."""
    (tmp_path / "a.py").write_text(
        "import sys\nprint('x' * 1000)\nsys.stderr.write('y')\nsys.stdout.close()\na = int('1')\n"
    )
    assert load(tmp_path / "a.py").names["a"].value == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in refused(tmp_path, "a = 1\n" * MAX_BYTES)
    assert "too deeply" in refused(tmp_path, f"a = {'-' * 500_000}1\n") or sys.version_info >= (3, 12)


def test_a_changed_file_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("a = int('1')\n")
    (tmp_path / "main.py").write_text("from common import *\nb = int('2')\n")
    assert load(tmp_path / "main.py").names["a"].value == 1
    (tmp_path / "common.py").write_text("a = int('3')\n")
    assert load(tmp_path / "main.py").names["a"].value == 3


# -- files that are read without being run ----------------------------------------------------------------------------

SHIPPED = sorted(
    [
        *REPO.glob("suites/*/*/config/*.py"),
        *REPO.glob("vendors/*/*/config/*.py"),
        *REPO.glob("flagperf_driver/**/defaults.py"),
    ]
)


def test_all_config_files_of_this_repository_are_read_without_running_them() -> None:
    """Many cases are planned at once; a process for each file would take minutes."""
    assert len(SHIPPED) > 50
    assert [file for file in SHIPPED if read(file, parse(file)) is None] == []


def test_reading_and_running_a_file_give_the_same(tmp_path: Path) -> None:
    for number, file in enumerate(SHIPPED[::8]):
        folder = tmp_path / str(number)
        shutil.copytree(file.parent, folder)
        plain = load(folder / file.name).names
        # The same values; but a file with an `if` is not read without being run.
        (folder / file.name).write_text(file.read_text(encoding="utf-8") + "\nif True:\n    pass\n", encoding="utf-8")
        assert read(folder / file.name, parse(folder / file.name)) is None
        assert load(folder / file.name).names == plain, file
