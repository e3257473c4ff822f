"""The variables of environment_variables.sh reach the ranks unchanged."""

from pathlib import Path

import pytest

from pytest_flagperf import runtime
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.runtime import Interpreter, RuntimeSetupError
from pytest_flagperf.runtime.environment_file import NAME, read_lines, with_environment_file

PYTHON = Interpreter("python3", {"KEPT": "as it is"})


def test_all_variables_of_the_file_are_used_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("echo noise=1\nexport ONE=1\nTWO='a b; $(c)\nd'\nKEPT=\"$KEPT, and more\"\nfalse\n")
    env = with_environment_file(LocalHost(), PYTHON, tmp_path / NAME).env
    assert env == {"ONE": "1", "TWO": "a b; $(c)\nd", "KEPT": "as it is, and more"}
    assert with_environment_file(LocalHost(), PYTHON, tmp_path / "none.sh") is PYTHON


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("export ONE=1", ["ONE"]),
        ("ONE=1 TWO=a/b:c  # THREE=3", ["ONE", "TWO"]),
        ("export ONE=1; export TWO=2;", ["ONE", "TWO"]),
        ("declare -x LIB=$HOME/lib:${LIB:-/usr/lib}", ["LIB"]),
        ("export ARGS=\"-L 'O0' \\$(x) $ONE\" OTHER='`x` $(x); x'", ["ARGS", "OTHER"]),
        ("EMPTY=", ["EMPTY"]),
    ],
)
def test_a_line_that_only_sets_variables_is_no_command(tmp_path: Path, line: str, names: list[str]) -> None:
    (tmp_path / NAME).write_text(f"# a comment\n\n{line}\n")
    assert [(one.number, list(one.names), one.command) for one in read_lines(tmp_path / NAME)] == [(3, names, "")]


@pytest.mark.parametrize(
    "line",
    [
        "X=$(touch ran)",
        "X=`touch ran`",
        "X=1 touch ran",
        "X=1; touch ran",
        "X=<(touch ran)",
        "X=${Y@P}",
        "X=$((a[$(touch ran)]))",
        "export X[$(touch ran)]=1",
        "X=1 > ran",
        "X=1 \\",
        "X='1",
        'X="\\\0" Y=\'"$(touch ran)#\'',
        "export\u00a0X=1",
        "declare -i X=1",
        ". ./ran",
    ],
)
def test_a_line_that_may_run_a_program_is_a_command_with_its_text(tmp_path: Path, line: str) -> None:
    (tmp_path / NAME).write_text(f"export ONE=1\n{line}\n")
    assert [(found.number, found.command) for found in read_lines(tmp_path / NAME)] == [(1, ""), (2, line)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export KEY='one\ntwo' B=1\n\nC=\"3\n4\"  # five\nD=", [(1, "KEY B", ""), (4, "C", ""), (6, "D", "")]),
        ("# don't\nKEY='one\r\ntwo'\r\n", [(2, "KEY", "")]),
        ("echo '\nX='1\ntouch ran\n'\n", [(1, "", "echo '"), (2, "", "X='1"), (3, "", "touch ran"), (4, "", "'")]),
        ("# \rX='1\ntouch ran\n#'\n", [(2, "", "touch ran")]),  # to bash a lone carriage return ends no comment
        ("\f# 1; touch ran\n", [(1, "", "\f# 1; touch ran")]),  # to bash a form feed is no blank
        ("X='1\n2'; touch ran\n", [(1, "", "X='1"), (2, "", "2'; touch ran")]),
    ],
)
def test_text_of_several_lines_may_be_a_value(tmp_path: Path, text: str, expected: list[tuple[int, str, str]]) -> None:
    (tmp_path / NAME).write_bytes(text.encode())
    assert [(line.number, " ".join(line.names), line.command) for line in read_lines(tmp_path / NAME)] == expected


def test_no_program_of_the_files_path_runs(tmp_path: Path) -> None:
    program = tmp_path / "env"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    (tmp_path / NAME).write_text(f"export PATH={tmp_path} ONE=1\n")
    env = with_environment_file(LocalHost(), PYTHON, tmp_path / NAME).env
    assert (env["PATH"], env["ONE"]) == (str(tmp_path), "1")
    assert not (tmp_path / "ran").exists()


def test_the_vendors_variables_are_set_when_the_file_is_sourced(tmp_path: Path) -> None:
    variables = [("HOME_OF_IT", "/opt/it"), ("KEPT", "another")]
    assert with_environment_file(LocalHost(), PYTHON, None, variables).env == {
        "KEPT": "another",
        "HOME_OF_IT": "/opt/it",
    }
    (tmp_path / NAME).write_text("export LIB=$HOME_OF_IT/lib HOME_OF_IT=/opt/other\n")
    env = with_environment_file(LocalHost(), PYTHON, tmp_path / NAME, variables).env
    assert env == {"KEPT": "another", "HOME_OF_IT": "/opt/other", "LIB": "/opt/it/lib"}
    assert PYTHON.env == {"KEPT": "as it is"}


def test_a_file_that_ends_the_shell_or_has_a_syntax_error_is_named_and_windows_lines_work(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("echo no licence >&2\nexit 3\n")
    with pytest.raises(RuntimeSetupError, match=r"localhost: .*\.sh cannot be sourced .*3\): no licence"):
        with_environment_file(LocalHost(), PYTHON, tmp_path / NAME)
    (tmp_path / NAME).write_text("export ONE=1\nif true; then\n")
    with pytest.raises(RuntimeSetupError, match=r"sourced \(exit code 2\): .*: line 3: syntax error"):
        with_environment_file(LocalHost(), PYTHON, tmp_path / NAME)
    (tmp_path / NAME).write_bytes(b"\xef\xbb\xbfexport ONE=1\r\n\r\nexport TWO=2\r\n")
    assert with_environment_file(LocalHost(), PYTHON, tmp_path / NAME).env == {
        "KEPT": "as it is",
        "ONE": "1",
        "TWO": "2",
    }


def test_a_file_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.environment_file, "TIMEOUT_S", 0.2)
    (tmp_path / NAME).write_text("sleep 60\n")
    with pytest.raises(HostError, match=r"did not end within 0.2 s; the command was to source .*"):
        with_environment_file(LocalHost(), PYTHON, tmp_path / NAME)
