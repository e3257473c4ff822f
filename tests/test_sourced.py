"""environment_variables.sh reaches the ranks, whatever its values hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flagperf.cluster.local import LocalHost
from pytest_flagperf.runtime import Interpreter, RuntimeSetupError
from pytest_flagperf.runtime.sourced import NAME, sourced

PYTHON = Interpreter("python3", {"KEPT": "as it is"})


def test_what_the_file_sets_is_taken_whole(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("echo noise=1\nexport ONE=1\nTWO='a b; $(c)\nd'\nKEPT=\"$KEPT, and more\"\nfalse\n")
    env = sourced(LocalHost(), PYTHON, tmp_path).env
    assert env == {"ONE": "1", "TWO": "a b; $(c)\nd", "KEPT": "as it is, and more"}


def test_without_a_file_nothing_changes(tmp_path: Path) -> None:
    assert sourced(LocalHost(), PYTHON, tmp_path) is PYTHON


def test_a_file_that_ends_the_shell_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("echo no licence >&2\nexit 3\n")
    with pytest.raises(RuntimeSetupError, match=r"environment_variables\.sh cannot be sourced .*3\): no licence"):
        sourced(LocalHost(), PYTHON, tmp_path)
