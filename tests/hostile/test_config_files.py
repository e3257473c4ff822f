"""Config files that would run programs, never end or build huge values: each is refused with its line and never run."""

import sys
from pathlib import Path

import pytest

from pytest_flagperf.config import ConfigError, load
from pytest_flagperf.config.module import MAX_BYTES

RUN = "import os\nopen('ran', 'w').close()\nos.system('touch ran')\na = os.system('touch ran')\n"
HUGE = {
    "a = 'x' * 100000000\n": "1: a: arithmetic with a str",
    "a = [0] * 10000000000\n": "1: a: arithmetic with a list",
    "a = [1]\n" + "a = [a, a, a, a, a, a, a, a]\n" * 9: "8: a: the file's values are too large",
    "a = 'xxxxxxxxxx'\n" + "a = a + a + a + a\n" * 20: "9: a: the file's values are too large",
}


def refused(folder: Path, text: str) -> list[str]:
    file = folder / "config_X9x1x8.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    return [problem.removeprefix(f"{file}:") for problem in caught.value.problems]


def test_nothing_of_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "common.py").write_text(RUN)
    problems = refused(tmp_path, RUN + "from common import *\n")
    assert [problem.partition(": ")[0] for problem in problems] == [
        "2", "3", f"{tmp_path}/common.py:2", f"{tmp_path}/common.py:3", f"{tmp_path}/common.py:4",
    ]  # fmt: skip
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("text", "problem"), HUGE.items(), ids=range(len(HUGE)))
def test_a_huge_value_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert refused(tmp_path, text)[0].startswith(problem)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in refused(tmp_path, "a = 1\n" * MAX_BYTES)[0]
    for depth in (3_000, 500_000):
        assert "too deeply" in refused(tmp_path, f"a = {'-' * depth}1\n")[0] or sys.version_info >= (3, 12)
