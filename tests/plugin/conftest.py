"""A tree with toy suites and vendors to run pytest in; only the training is simulated."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.trees import PLAIN_SUITE_TOML, PLAIN_VENDOR_TOML

TRAINING = Path(__file__).parent / "toy_training.py"
QUIET = Path(__file__).parent / "machine"
TEST = """
from pytest_flagperf.benchmark import TrainingBenchmark


class Test{name}(TrainingBenchmark):
    pass
"""
BASE = """
train_batch_size = 4
learning_rate = 0.05
max_steps = 30
step_s = 0.01
speed = 100.0
efficiency = 0.9
fault = ""
"""


class Toy:
    """The tree, and methods to run pytest in it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.vendor("cpu", "CPU", "small")
        self.vendor("acme", "X1", "reference")

    def vendor(self, name: str, chip: str, scale: str) -> None:
        folder = self.root / "vendors" / name
        folder.mkdir(parents=True)
        (folder / "vendor.toml").write_text(PLAIN_VENDOR_TOML.format(name=name.title(), chip=chip, scale=scale))

    def suite(self, model: str, base: str = "") -> None:
        folder = self.root / "suites" / model / "plain"
        (folder / "config").mkdir(parents=True)
        (folder.parent / f"test_{model}.py").write_text(TEST.format(name=model.title()))
        (folder / "suite.toml").write_text(PLAIN_SUITE_TOML)
        (folder / "config" / "_base.py").write_text(BASE + base)
        (folder / "config" / "_small.py").write_text("train_batch_size = 2\n")
        mutable = ["step_s", "speed", "efficiency", "fault"]
        (folder / "config" / "mutable_params.py").write_text(f"mutable_params = {mutable}\n")
        shutil.copy(TRAINING, folder / "run_pretraining.py")

    def config(self, model: str, shape: str, text: str, vendor: str = "acme", chip: str = "X1") -> None:
        folder = self.root / "vendors" / vendor / f"{model}-plain" / "config"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"config_{chip}x{shape}.py").write_text(text)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.root / "reports").glob("run*"))


def ignore_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test give no warning if other programs or the hypervisor use the machine's cores."""
    monkeypatch.setenv("PYTHONPATH", str(QUIET), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_PLUGINS", "quiet_machine")


@pytest.fixture
def toy(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A tree with two suites that run at the small scale on any machine."""
    monkeypatch.setenv("FLAGPERF_CACHE", str(pytester.path / "cache"))
    monkeypatch.setenv("FLAGPERF_LEASES", str(pytester.path / "leases"))
    ignore_other_load(monkeypatch)
    # The python3 of the ranks; that of a version manager is a script that starts 40 processes.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    tree = Toy(pytester)
    tree.suite("alpha")
    tree.suite("beta")
    return tree
