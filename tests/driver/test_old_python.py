"""The code that runs on hosts, with an old Python and without any packages."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.driver.lab import REPO, Lab

PACKAGE = REPO / "flagperf_driver"
FRAMEWORKS = {path.parent.name for path in PACKAGE.glob("*/main.py")}
MODULES = sorted(
    ".".join(path.relative_to(REPO).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if not FRAMEWORKS.intersection(path.relative_to(PACKAGE).parts) and path.stem != "__init__"
)
MODULES.remove("flagperf_driver.training.base")  # needs numpy


@cache
def old_pythons() -> list[str]:
    """Return the installed Pythons 3.8 and 3.9 that run; a version manager's shim may not."""
    names = [shutil.which(name) for name in ("python3.8", "python3.9")]
    from_pyenv = sorted(Path(os.environ.get("PYENV_ROOT", "/none")).glob("versions/3.[89].*/bin/python"))
    return [path for path in dict.fromkeys([*filter(None, names), *map(str, from_pyenv)]) if _runs(path)]


def _runs(python: str) -> bool:
    command = [python, "-I", "-S", "-c", "import sys; assert sys.version_info[:2] in ((3, 8), (3, 9))"]
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0


def importing(python: str, modules: list[str]) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.append({str(REPO)!r})\n" + "".join(f"import {name}\n" for name in modules)
    command = [python, "-I", "-S", "-B", "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("python", [sys.executable, *old_pythons()])
def test_everything_imports_without_any_package(python: str) -> None:
    assert importing(python, MODULES).stderr == ""
    assert "ModuleNotFoundError" in importing(python, ["pytest"]).stderr  # the control


@pytest.mark.parametrize("python", old_pythons())
def test_the_agent_runs_a_round(python: str, tmp_path: Path) -> None:
    with Lab(tmp_path, python) as lab:
        then_fail = "while not Path('rank0.exit.json').exists(): train(1, 2)\nraise ValueError('no')"
        lab.start("train(1, 5)\nlog(events.FINISHED)", then_fail)
        fault = lab.fault()
        assert fault["sentence"] == "rank 1 ended with exit code 1: ValueError: no"
        assert lab.exit(0)["code"] == 0
