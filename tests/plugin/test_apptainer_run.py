"""Whole runs with --runtime=apptainer and a double of Apptainer."""

import json
from pathlib import Path

import pytest

from tests.helpers.apptainer import Double
from tests.plugin.conftest import Toy


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Toy) -> Double:
    return Double(tmp_path, monkeypatch)


@pytest.mark.integration
def test_a_run_in_containers(toy: Toy, double: Double) -> None:
    sif = toy.root / "image.sif"
    sif.write_text("an image")
    result = toy.run("suites", "-kalpha and 1x2 and converges", "--runtime=apptainer", f"--image={sif}")
    assert result.ret == 0, result.outlines
    (plan,) = toy.runs[-1].glob("*/round1/plan.json")
    stored = json.loads(plan.read_text())
    assert stored["interpreter"]["label"] == f"apptainer: {sif}"
    assert stored["interpreter"]["digest"].startswith("sha256:")
    last = double.calls[-1]
    assert " flagperf_driver.node.agent.starter " in last
    assert f"--bind={plan.parent}/localhost_noderank0:" in last
    shown = toy.run("suites", "-kalpha and 1x2", "--runtime=apptainer", f"--image={sif}", "--plan", "-v")
    shown.stdout.fnmatch_lines(["*image*" + str(sif) + ", of *", "*each host*Apptainer or Singularity*"])
