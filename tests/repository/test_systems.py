"""macOS and Windows: what plans and reports need can be imported, rounds are refused, and names of files are valid."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest

from pytest_flagperf.engines.agents import agents_engine
from pytest_flagperf.problems import Problems
from pytest_flagperf.stored import layout
from pytest_flagperf_page.html import address
from tests.helpers.stored_runs import run_of

REPO = Path(__file__).resolve().parents[2]
OF_PACKAGES = {"compare": "command", "page": "command", "slurm": "allocation", "watch": "command"}
OURS = ("pytest_flagperf", "flagperf_driver", *(f"pytest_flagperf_{name}" for name in OF_PACKAGES), "planted")
LACKING = """
import builtins, os, pkgutil, signal, sys
import pytest, flagperf_driver.node
sys.path += [{folder!r}, "packages/page"]
import_module = builtins.__import__
modules = {{"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "posix", "curses", "readline"}}

class Lacking:
    def __init__(self, module, names):
        self.module, self.names = module, names
    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(f"this system has no {{name}}")
        return getattr(self.module, name)

instead = {{
    "os": Lacking(os, "getuid geteuid killpg setsid fork memfd_create pidfd_open sched_getaffinity O_NOFOLLOW".split()),
    "signal": Lacking(signal, "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGALRM SIGCHLD pthread_sigmask SIG_BLOCK".split()),
}}

def guarded(name, importer=None, *arguments, **named):
    if str((importer or {{}}).get("__name__")).partition(".")[0] in {ours!r}:
        if name in modules:
            raise ModuleNotFoundError(f"this system has no module {{name}}")
        return instead.get(name) or import_module(name, importer, *arguments, **named)
    return import_module(name, importer, *arguments, **named)

builtins.__import__ = guarded
for name in {names!r}:
    __import__(name)
import pytest_flagperf
for found in pkgutil.walk_packages(pytest_flagperf.__path__, "pytest_flagperf."):
    if found.name != "pytest_flagperf.runtime.docker.containers":  # which only rounds import
        __import__(found.name)
"""
"""A process whose modules of ours lack what Windows lacks, as far as an import shows it."""


def import_all(folder: Path, *planted: str) -> str:
    script = LACKING.format(folder=str(folder), names=planted, ours=OURS)
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=False)
    return done.stderr


def test_all_modules_of_the_controller_can_be_imported_on_windows(tmp_path: Path) -> None:
    for name, module in OF_PACKAGES.items():
        assert import_all(REPO / "packages" / name, f"pytest_flagperf_{name}.{module}") == ""
    (tmp_path / "planted.py").write_text("import fcntl\n")
    assert "this system has no module fcntl" in import_all(tmp_path, "planted")
    (tmp_path / "planted.py").write_text("from os import killpg\n")
    assert "cannot import name 'killpg'" in import_all(tmp_path, "planted")


@pytest.mark.parametrize(
    ("system", "other_hosts", "warning", "problem"),
    [
        ("linux", False, "", ""),
        ("linux", True, "", ""),
        ("darwin", True, "warning: this machine runs macOS", ""),
        ("darwin", False, "", "rounds cannot run on macOS: pass --cluster"),
        ("win32", True, "", "cannot be started on Windows"),
    ],
)
def test_systems_that_may_start_rounds(
    monkeypatch: pytest.MonkeyPatch, system: str, other_hosts: bool, warning: str, problem: str
) -> None:
    monkeypatch.setattr(agents_engine, "sys", SimpleNamespace(platform=system))
    with pytest.raises(Problems, match=problem) if problem else nullcontext():
        warnings = agents_engine.check_system(only_other_hosts=other_hosts)
        assert "".join(warnings).startswith(warning)
        assert len(warnings) == bool(warning)


def is_name(name: str) -> bool:
    return not set('<>:"|?*') & set(name) and not name.endswith((".", " ")) and not PureWindowsPath(name).is_reserved()


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
