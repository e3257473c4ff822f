"""The root's conftest.py runs suites from a checkout that is not installed, with few packages."""

import importlib.metadata
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Toy

pytestmark = pytest.mark.slow
REPO = Path(__file__).resolve().parents[2]
PACKAGES = ("pytest", "_pytest", "py", "pluggy", "packaging", "iniconfig", "pygments", "orjson", "psutil")


class Bare:
    """A tree of toy suites with the checkout's code, and a Python that has only some packages."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        for name in ("pytest_flagperf", "flagperf_driver", "packages", "pyproject.toml"):
            (toy.root / name).symlink_to(REPO / name)
        shutil.copy(REPO / "conftest.py", toy.root)

    def run(self, *arguments: str, packages: tuple[str, ...] = PACKAGES) -> tuple[int, str]:
        site = self.toy.root / "site"
        shutil.rmtree(site, ignore_errors=True)
        site.mkdir()
        for name in packages:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            origin = Path(str(spec.origin))
            origin = origin.parent if origin.stem == "__init__" else origin
            for found in (origin, *origin.parent.glob(f"{name}-*.dist-info"), *origin.parent.glob(f"pytest_{name}-*")):
                (site / found.name).symlink_to(found)
        path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        # With -S Python does not see the packages of its own environment, in which the plugin is installed.
        argv = [sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", "suites/alpha", *arguments]
        done = subprocess.run(
            argv, cwd=self.toy.root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def bare(toy: Toy) -> Bare:
    return Bare(toy)


def test_a_suite_trains_with_the_packages_of_the_selected_runtime(bare: Bare) -> None:
    code, output = bare.run("-k", "converges and 1x1", "--runtime=host")
    assert code == 0, output
    assert (bare.toy.runs[0] / "report.html").is_file()
    # Control: a runtime, a place and a report that need another package name it.
    for options, message in (
        (("--runtime=venv",), "need uv, which is not installed: pip install uv, or use --runtime=host"),
        (("--cluster=h1",), "--cluster needs fabric, which is not installed: pip install fabric"),
    ):
        code, output = bare.run("-k", "converges and 1x1", *options)
        assert code != 0
        assert message in output


@pytest.mark.parametrize("given", [("-n", "1"), ("-p", "pytest_flagperf.plugin"), ("--import-mode=importlib",)])
def test_the_plugin_is_loaded_once_however_pytest_is_started(bare: Bare, given: tuple[str, ...]) -> None:
    code, output = bare.run(
        "-k", "converges and 1x1", "--runtime=host", *given, packages=(*PACKAGES, "xdist", "execnet")
    )
    assert code == 0, output
    assert "1 of 1 case passed" in output


def test_missing_packages_are_named_before_anything_runs(bare: Bare) -> None:
    code, output = bare.run("--runtime=host", packages=tuple(name for name in PACKAGES if name != "psutil"))
    assert code == 1
    assert output.startswith(f"pytest-flagperf needs psutil; got {sys.executable}, Python ")
    assert not bare.toy.runs


def test_an_old_python_and_an_old_pytest_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: None)  # that of Python 3.9 takes no arguments
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.delattr(pytest, "version_tuple")  # pytest 6.2
    with pytest.raises(SystemExit, match=r"^pytest-flagperf needs Python >= 3\.11, pytest >= 9; got "):
        runpy.run_path(str(REPO / "conftest.py"))
