"""The vendors' own steps compute the same as the standard steps and pass all checks."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from flagperf_driver import extern

REPO = Path(__file__).resolve().parents[2]


def test_every_adapter_replaces_something() -> None:
    assert [folder for folder in REPO.glob("vendors/*/*/extern") if not extern.replaced_steps(folder)] == []


@pytest.mark.slow
def test_the_fused_lamb_computes_the_same_and_is_compiled_for_a_gpu_alone(torch_python: str) -> None:
    """The operations are the same, but sums have another order: five steps may differ by some roundings of 6e-8."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TRITON_INTERPRET", None)
    program = str(REPO / "tests" / "vendors" / "fused_lamb.py")
    done = subprocess.run([torch_python, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lamb = json.loads(done.stdout)
    assert lamb["difference"] < 1e-6
    assert lamb["without decay"] < 1e-6
    assert lamb["control"] > 1e-2, "the control: another optimizer differs"
    assert lamb["moved"] > 1e-2, "the control: the steps change the weights"
    assert lamb["deviations"] == {"optimizer class": ["FusedLamb", "Lamb"]}, "the driver's check accepts it"
    assert lamb["kernels"] == ["_advance", "_advance", "_apply"]
    assert lamb["names"] == {
        "cpu": "Lamb", "adamw": "AdamW", "interpreted": "FusedLamb", "sharded": "Lamb", "switched off": "Lamb",
    }  # fmt: skip
