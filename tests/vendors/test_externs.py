"""The vendors' own steps: that they compute what the standard ones do, and are refused nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import extern

REPO = Path(__file__).resolve().parents[2]
FOLDERS = sorted(REPO.glob("vendors/*/*/extern"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(REPO).as_posix())
def test_every_adapter_replaces_something(folder: Path) -> None:
    assert extern.replaced_steps(folder)


@pytest.fixture(scope="module")
def lamb(torch_python: str) -> Any:
    """What a process with torch found of the fused LAMB."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TRITON_INTERPRET", None)
    program = str(REPO / "tests" / "vendors" / "fused_lamb.py")
    done = subprocess.run([torch_python, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_fused_lamb_is_the_standard_one(lamb: Any) -> None:
    """The same operations on fp32 numbers, sums in another order: five steps leave some roundings of 6e-8."""
    assert lamb["apart"] < 1e-6
    assert lamb["without decay"] < 1e-6
    assert lamb["control"] > 1e-2, "the control: another optimizer is far from it"
    assert lamb["moved"] > 1e-2, "the control: there is something to be equal in"
    assert lamb["deviations"] == {"optimizer class": ["FusedLamb", "Lamb"]}, "and the harness's check lets it pass"


@pytest.mark.slow
def test_the_fused_lamb_is_compiled_for_a_gpu_and_elsewhere_the_standard_is_taken(lamb: Any) -> None:
    assert lamb["kernels"] == ["_advance", "_advance", "_apply"]
    assert lamb["names"] == {
        "cpu": "Lamb", "adamw": "AdamW", "interpreted": "FusedLamb", "sharded": "Lamb", "not wanted": "Lamb",
    }  # fmt: skip
