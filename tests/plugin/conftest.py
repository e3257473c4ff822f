"""A tree with toy suites and vendors to run pytest in; only the training is simulated."""

import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import listens_to_ctrl_c
from tests.helpers.trees import PLAIN_MEASUREMENT_TOML, PLAIN_SUITE_TOML, PLAIN_VENDOR_TOML, write
from tests.helpers.waiting import until

TRAINING = Path(__file__).parent / "toy_training.py"
SHARED_TRAINING = Path(__file__).parents[1] / "lab" / "shared_training.py"
"""Its ranks wait for each other, and it can be repeated."""
MEASUREMENT = Path(__file__).parent / "toy_measurement.py"
QUIET = Path(__file__).parent / "machine"
TEST = """
from pytest_flagperf.benchmark import {kind}Benchmark


class Test{name}({kind}Benchmark):
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
MEASUREMENT_BASE = """
step_s = 0.01
speed = 20e9
interval = 0.01
slow_rank = -1
"""


@dataclass
class Going:
    process: subprocess.Popen[Any]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = 180) -> int:
        return self.process.wait(timeout_s)

    def wait_for(self, ready: Callable[[], object], what: str, timeout_s: float = 90) -> None:
        """Wait until the condition holds; fail with the run's output if the run ends before."""

        def there() -> bool:
            if ready():
                return True
            assert self.process.poll() is None, f"it ended before {what}:\n{self.text}"
            return False

        until(there, f"{what}; output:\n{self.text}", timeout_s)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Toy:
    """The tree, and methods to run pytest in it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.going: list[Going] = []
        self.vendor("cpu", "CPU", "small")
        self.vendor("acme", "X1", "reference")

    def vendor(self, name: str, chip: str, scale: str) -> None:
        toml = PLAIN_VENDOR_TOML.format(name=name.title(), chip=chip, scale=scale)
        write(self.root, f"vendors/{name}/vendor.toml", toml)

    def suite(self, model: str, base: str = "", training: Path = TRAINING) -> None:
        mutable = ["step_s", "speed", "efficiency", "fault"]
        folder = self._suite(model, "Training", PLAIN_SUITE_TOML, BASE + base, mutable)
        (folder / "config" / "_small.py").write_text("train_batch_size = 2\n")
        shutil.copy(training, folder / "run_pretraining.py")

    def measurement(self, name: str = "gamma", toml: str = PLAIN_MEASUREMENT_TOML) -> None:
        mutable = ["step_s", "speed", "interval", "slow_rank"]
        folder = self._suite(name, "Measurement", toml, MEASUREMENT_BASE, mutable)
        shutil.copy(MEASUREMENT, folder / "run_measurement.py")

    def _suite(self, name: str, kind: str, toml: str, base: str, mutable: list[str]) -> Path:
        folder = self.root / "suites" / name / "plain"
        write(folder.parent, f"test_{name}.py", TEST.format(name=name.title(), kind=kind))
        write(folder, "suite.toml", toml)
        write(folder, "config/_base.py", base)
        write(folder, "config/_small.py", "")
        write(folder, "config/mutable_params.py", f"mutable_params = {mutable}\n")
        return folder

    def config(self, model: str, shape: str, text: str, vendor: str = "acme", chip: str = "X1") -> None:
        write(self.root, f"vendors/{vendor}/{model}-plain/config/config_{chip}x{shape}.py", text)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    def collected(self, *arguments: str) -> list[str]:
        """Return the names of the tests that these arguments select."""
        lines = self.run(*arguments, "--collect-only", "-q").outlines
        return [line.rsplit("::", 1)[1] for line in lines if "::" in line]

    def flagperf(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "pytest_flagperf", *map(str, arguments)]
        return subprocess.run(argv, cwd=self.root, capture_output=True, text=True, check=False)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Going:
        """Start a run that a test watches while it goes on; the end of the test ends it."""
        log = self.root / f"run{len(self.going)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
                cwd=self.root, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},  # into a file it would write blocks
                preexec_fn=listens_to_ctrl_c,
            )  # fmt: skip
        self.going.append(Going(process, log))
        return self.going[-1]

    def end(self) -> None:
        for going in self.going:
            with suppress(ProcessLookupError):
                going.process.kill()
            going.process.wait(60)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.root / "reports").glob("run*"))

    @property
    def junit(self) -> ET.Element:
        return ET.parse(self.runs[-1] / "junit.xml").getroot()


def ignore_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test give no warning if other programs or the hypervisor use the machine's cores."""
    monkeypatch.setenv("PYTHONPATH", str(QUIET), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_PLUGINS", "quiet_machine")


def move_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs keep in this folder what they share with others."""
    monkeypatch.setenv("FLAGPERF_CACHE", str(folder / "cache"))
    monkeypatch.setenv("FLAGPERF_LEASES", str(folder / "leases"))
    ignore_other_load(monkeypatch)
    # The python3 of the ranks; that of a version manager is a script that starts 40 processes.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


@pytest.fixture
def toy(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A tree with two suites that run at the small scale on any machine."""
    move_in(pytester.path, monkeypatch)
    tree = Toy(pytester)
    tree.suite("alpha")
    tree.suite("beta")
    yield tree
    tree.end()
