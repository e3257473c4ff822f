"""A run of toy trainings on devices that a probe makes up, and ``flagperf watch`` beside it in a terminal."""

import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.helpers.pseudo_terminal import Terminal
from tests.plugin.conftest import QUIET, TRAINING, Toy

CASES = "alpha", "beta", "gamma"
PROBE = '''
"""Devices whose power and temperature follow the clock."""
import json
import sys

COMMAND = ["python3", "-c", """
import json, math, time
now = time.time()
print(json.dumps([{
    "device": device, "name": "CPU", "power": round(240 + 40 * math.sin(now / 5 + device), 1),
    "temperature": round(58 + 6 * math.sin(now / 9 + device)), "memory_used": 61000, "memory_total": 81559,
    "utilization": round(92 + 5 * math.sin(now / 3 + device)),
} for device in range(8)]))
"""]
EVERY_S = 1


def parse(text):
    return json.loads(text)
'''
_CHANGES = {
    "loss = float(\"nan\") if config.fault == \"nan\" else 1.0 / step":
        "loss = 2.2 * math.exp(-step / 150) + 0.15 + 0.04 * math.sin(step * 1.7)",
    "accuracy = min(1.0, config.learning_rate * step)": "accuracy = 0.95 * (1 - math.exp(-(step - step % 20) / 180))",
    '"throughput": rate,': '"throughput": rate * (1 + 0.05 * math.sin(step / 9) + 0.02 * math.sin(step * 2.3)),',
    "import os\n": "import math\nimport os\n",
    "time.sleep(config.step_s)": "time.sleep(config.step_s if step < 100 or Path({go!r}).exists() else 0.2)",
}  # fmt: skip


def toy_tree(root: Path, cases: tuple[str, ...] = CASES, base: str = "") -> Toy:
    """Return a tree of toy suites whose curves look like those of a training, on devices of a probe.

    They go on after 100 steps when the file ``go`` in the root exists.
    """
    toy = Toy(cast(pytest.Pytester, types.SimpleNamespace(path=root)))
    (root / "vendors" / "cpu" / "probe.py").write_text(PROBE)
    training = TRAINING.read_text()
    for old, new in _CHANGES.items():
        assert old in training
        training = training.replace(old, new.replace("{go!r}", repr(str(root / "go"))))
    for number, name in enumerate(cases):
        toy.suite(name, f"max_steps = 2000\nspeed = {4000 + 900 * number}\nstep_s = {0.06 + 0.02 * number}\n{base}")
        (root / "suites" / name / "plain" / "run_pretraining.py").write_text(training)
    return toy


def environment(root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLAGPERF_CACHE": str(root / "cache"),
        "FLAGPERF_LEASES": str(root / "leases"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(QUIET), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_PLUGINS": "quiet_machine",
    }


def start_run(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", *arguments]
    with (root / "pytest.log").open("wb") as log:
        return subprocess.Popen(argv, cwd=root, env=environment(root), stdout=log, stderr=subprocess.STDOUT)


def watch(root: Path, *arguments: str, env: Mapping[str, str] | None = None, **size: Any) -> Terminal:
    argv = ["flagperf", "watch", *arguments]
    return Terminal(argv, cwd=root, env={**environment(root), **(env or {})}, **size)
