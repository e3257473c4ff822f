"""Bad inputs for all options, files and commands: no traceback, no hang, no shell.

``--hostile-inputs=10000`` tries that many; without it a sample is tried.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.plugin.conftest import Toy, toy

from . import bad_inputs
from .bad_inputs import SURFACES, Inputs, finding

pytestmark = pytest.mark.integration

__all__ = ["toy"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SURFACES)
def test_no_input_leads_to_a_traceback_a_hang_or_a_shell(
    name: str, scratch: Path, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    many = max(1, int(pytestconfig.getoption("hostile_inputs")) // len(SURFACES))
    found = [wrong for number in range(many) if (wrong := finding(name, number, scratch))]
    capfd.readouterr()
    assert not found, "\n".join(found[:20])


# -- the controls: each kind of finding is seen ---------------------------------------------------------------------


def _raises(inputs: Inputs, folder: Path) -> str:
    raise TypeError("a bug")


def _runs_a_shell(inputs: Inputs, folder: Path) -> str:
    subprocess.run(f"echo $(touch {folder.parent / bad_inputs.CANARY})", shell=True, check=True)
    return ""


def _starts_a_shell(inputs: Inputs, folder: Path) -> str:
    subprocess.run(["/bin/sh", "-c", "exit"], check=True)
    return ""


def _hangs(inputs: Inputs, folder: Path) -> str:
    signal.pause()
    return ""


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (_raises, "TypeError: a bug"),
        (_runs_a_shell, "a shell ran a part of it"),
        (_starts_a_shell, "a shell was started"),
        (_hangs, "did not end"),
    ],
)
def test_every_kind_of_finding_is_reported(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, bad: bad_inputs.Surface, expected: str
) -> None:
    monkeypatch.setitem(SURFACES, "options", bad)
    monkeypatch.setattr(bad_inputs, "LONGEST_S", 1)
    assert expected in str(finding("options", 0, scratch))


# -- from the shell and back ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        *[[f"--{name}={'x' * 300}"] for name in ("vendor", "hw", "cluster", "image", "roots", "reports", "resume")],
        *[[f"--{name}={'x/' * 3000}"] for name in ("data-dir", "test-conf", "cluster-conf", "resume", "roots")],
        ["--cluster=,"],
        ["--cluster="],
        ["--set=max_steps=" + "9" * 5000],
        ["--nodes=" + "9" * 5000 + "x1"],
        ["--repeat=" + "9" * 5000],
        ["--vendor=$(touch hostile-canary)"],
        ["--cluster=h;touch${IFS}hostile-canary"],
        ["--container-opt=`touch hostile-canary`"],
    ],
    ids=lambda arguments: arguments[0][:30],
)
def test_a_bad_option_is_reported_with_exit_code_4(toy: Toy, arguments: list[str]) -> None:
    result = toy.run("suites", "--plan", *arguments)
    output = result.stdout.str() + result.stderr.str()
    if arguments[0].startswith(("--reports", "--image")):
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR)
    else:
        assert result.ret == pytest.ExitCode.USAGE_ERROR, output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert not (toy.root / bad_inputs.CANARY).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'roots = ["\\u0000"]',
        f'[cluster]\nhosts = ["h"]\nkey = "{"x" * 300}"',
        f'data-dir = "{"x" * 300}"',
        'cluster = ","',
        f'python = "{"x/" * 3000}"',
        'container-opt = ["`touch hostile-canary`"]\nruntime = "docker"\nimage = "i"',
    ],
)
def test_a_bad_settings_file_is_reported_with_exit_code_4(toy: Toy, text: str) -> None:
    (toy.root / "flagperf.toml").write_text(text)
    result = toy.run("suites", "--plan")
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, output
    assert "Traceback" not in output
    assert not (toy.root / bad_inputs.CANARY).exists()
