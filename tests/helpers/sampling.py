"""Samplers as the agent starts them, and GPUs that are a file, for tests and benchmarks without a lab."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.waiting import until
from tests.lab.nvml import Nvml

REPO = Path(__file__).resolve().parents[2]
MODULE = "flagperf_driver.node.sampling.sampler"
with_gpus = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a library of GPUs with")
BOOT = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_module(sys.argv[2], run_name='__main__')"


def code_root(folder: Path, *, with_pynvml: bool = True) -> Path:
    """The shipped code as it lies on a host."""
    root = folder / "code"
    (root / "lib").mkdir(parents=True)
    (root / "flagperf_driver").symlink_to(REPO / "flagperf_driver")
    if with_pynvml:
        import pynvml

        (root / "lib" / "pynvml.py").symlink_to(str(pynvml.__file__))
    return root


def gpus(folder: Path, count: int = 8) -> tuple[Nvml, dict[str, str]]:
    """That many, and the environment in which a program finds them."""
    root = folder / "gpus"
    for part in ("usr/lib", "state"):
        (root / part).mkdir(parents=True)
    disk = SimpleNamespace(folder=root)
    # What Nvml wants of a lab's host: no devices are made, and nothing is put on here.
    place = SimpleNamespace(name="here", address="127.0.0.1", root=root, disk=disk, run=_nothing, wear=_nothing)
    nvml = Nvml(cast("Any", place))
    nvml.on(count)
    return nvml, {"LD_LIBRARY_PATH": str(root / "usr/lib"), "LAB_NVML_STATE": str(nvml.state_file)}


def _nothing(*_: object, **__: object) -> None:
    pass


class Running:
    """A sampler and its files."""

    def __init__(
        self, root: Path, into: Path, env: Mapping[str, str], python: str = sys.executable, **orders: object
    ) -> None:
        self.folder = into
        into.mkdir(exist_ok=True)
        self.started = time.time()
        self._said = ""
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-c", BOOT, str(root), MODULE],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "FLAGPERF_SAMPLING": str(into), **env},
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"folder": str(into), **orders}).encode() + b"\n")
        self.process.stdin.flush()

    def end(self, timeout: float = 5) -> str:
        """Close its stdin, which ends it; return its stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait(timeout)

    def wait(self, timeout: float = 5) -> str:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        try:
            self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.stdin.close()
        if not self.process.stderr.closed:
            self._said = self.process.stderr.read().decode()
            self.process.stderr.close()
        return self._said

    def until(self, check: Callable[[], object], seconds: float = 60) -> None:
        until(lambda: check() or self.process.poll() is not None, f"what is in {self.folder}", seconds)
        assert check(), "the sampler has ended"

    def go_on(self, seconds: float, name: str = "host") -> None:
        """From the first row on; what is sampled then is in the files when it has ended."""
        self.until(lambda: self.rows(name))
        time.sleep(seconds)

    def rows(self, name: str = "devices") -> list[dict[str, str]]:
        """By the columns' names without their units; a last line cut short is left out."""
        path = self.folder / f"{name}.series.csv"
        if not path.is_file():
            return []
        head, *lines = path.read_text().split("\n")[:-1] or [""]
        names = [column.split(" [")[0] for column in head.split(",")]
        return [dict(zip(names, cells, strict=True)) for cells in csv.reader(lines)]

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "monitors.json").read_text())
        return found

    def cpu_s(self) -> float:
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
