"""macOS and Windows, as far as other_system.py simulates Windows: plans and reports work, rounds do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.engines.agents import systems
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.page import page
from pytest_flagperf.report.page.html import address
from pytest_flagperf.stored import layout
from tests.live_runs import training_run
from tests.other_system import is_name
from tests.stored_runs import faster, run_of

from .conftest import Toy

SCRIPT = Path(__file__).parents[1] / "other_system.py"


def on_windows(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "150"}
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


# -- commands --------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_show_compare_and_report_do_the_same_as_on_linux(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, which lacks all that macOS lacks."""
    old = run_of(tmp_path / "reports" / "run20261121061129", rounds=faster(1.0, 1.01, 0.99))
    new = run_of(tmp_path / "reports" / "run20261122061129", rounds=faster(0.9, 0.92, 0.91))
    commands = [["show", str(new)], ["compare", str(old), str(new)], ["report", str(new)], ["watch", str(new)]]
    monkeypatch.setenv("COLUMNS", "150")
    assert max(map(main, commands)) == 1
    expected = capsys.readouterr()
    own_page = page.standalone(new, new / layout.PAGE)
    (new / layout.PAGE).unlink()
    done = on_windows("flagperf", *(word for command in commands for word in (*command, "--")), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, expected.out, expected.err)
    assert (new / layout.PAGE).read_text(encoding="utf-8") == own_page


@pytest.mark.integration
def test_watch_shows_a_run_whose_process_is_on_linux(tmp_path: Path) -> None:
    running = training_run(tmp_path / "run20261121093000")
    running.close()
    done = on_windows("flagperf", "watch", "--once", running.path, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    first, _, _, case, *_ = done.stdout.splitlines()
    assert "probably died: no sign of life of its process" in first, "the record is old"
    assert case.startswith("glm:pytorch:A100:2:8:3 round 1")


@pytest.mark.integration
def test_a_plan_is_printed_and_a_run_is_refused(toy: Toy) -> None:
    shutil.rmtree(toy.root / "suites" / "beta")
    arguments = ("pytest", "-p", "no:cacheprovider", "suites", "--nodes=1x2")
    planned = on_windows(*arguments, "--plan", cwd=toy.root)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert planned.stdout.splitlines().count("alpha:plain:CPU:1:2:1") == 1
    assert [line.split()[:2] for line in planned.stdout.splitlines() if "train_batch_size" in line] == [
        ["train_batch_size", "2"]
    ]
    run = on_windows(*arguments, cwd=toy.root)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    reason = "rounds cannot be started on Windows: start the run on Linux;"
    assert f"ERROR: {reason} --plan and the commands show, compare and report work here" in run.stderr
    assert not (toy.root / "reports").exists()


@pytest.mark.parametrize(("system", "other_hosts"), [("linux", False), ("linux", True), ("darwin", True)])
def test_systems_that_may_start_rounds(monkeypatch: pytest.MonkeyPatch, system: str, other_hosts: bool) -> None:
    monkeypatch.setattr(systems, "sys", SimpleNamespace(platform=system))
    warnings = systems.check_system(only_other_hosts=other_hosts)
    assert [warning.partition(";")[0] for warning in warnings] == (
        ["warning: this machine runs macOS"] if system == "darwin" else []
    )


@pytest.mark.parametrize(
    ("system", "other_hosts", "reason"),
    [
        ("win32", True, "rounds cannot be started on Windows: start the run on Linux;"),
        ("darwin", False, "rounds cannot run on macOS: pass --cluster with hosts that run Linux;"),
    ],
)
def test_systems_that_may_not_start_rounds(
    monkeypatch: pytest.MonkeyPatch, system: str, other_hosts: bool, reason: str
) -> None:
    monkeypatch.setattr(systems, "sys", SimpleNamespace(platform=system))
    with pytest.raises(Problems, match=reason):
        systems.check_system(only_other_hosts=other_hosts)


# -- files -----------------------------------------------------------------------------------------------------


def test_windows_accepts_the_names_of_all_files_of_a_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run1")
    names = [path.name for path in run.rglob("*")]
    names += [
        layout.verdicts_file("test_converges[glm:pytorch:A100:1:8:3-round1]"),
        layout.baseline_file("glm:pytorch_2.1:A100:2:8:3"),
        layout.host_folder("gpu1.lab", 0),
        layout.failed_folder(1, layout.round_folder(1)),
        layout.turn_folder(1, layout.ALL_CARDS),
        *layout.REPORTS,
    ]
    assert [name for name in names if not is_name(name)] == []
    assert [name for name in ("a:b", "a.", "NUL", "a?") if is_name(name)] == []


def test_a_file_on_another_drive_has_an_absolute_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(tmp_path / "a b" / "c.log", tmp_path) == "a%20b/c.log"

    def refuse(*_: object) -> str:
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    monkeypatch.setattr(os.path, "relpath", refuse)
    assert address(tmp_path / "a b" / "c.log", tmp_path) == f"file://{tmp_path}/a%20b/c.log"
