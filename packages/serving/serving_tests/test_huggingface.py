"""``flagperf export --format=huggingface``: transformers computes the logits of the trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.commands import main
from pytest_flagperf.plan import PlanRequest, make_plan
from serving_tests.conftest import REPO, program
from serving_tests.test_kind import CATALOG
from tests.helpers.stored_runs import add_case, finish

TRAINING = "run1 a"


def run_of(folder: Path, model: str, checkpoints: Path | None, python: str) -> tuple[Path, Path]:
    """Return a run with a training of a model that keeps its checkpoints in a folder, and the plan of its round."""
    plan = make_plan(CATALOG, PlanRequest(Case.parse(f"{model}:pytorch:CPU:1:1:1"), "cpu", "small"))
    values = json.loads(json.dumps(plan.to_json()["values"]))
    values["checkpoint_dir"]["value"] = checkpoints and str(checkpoints)
    case = add_case(folder / model, "converged_1x1", model=model, values=values, training=TRAINING, python=python)
    return finish(folder / model), case / "round1" / "plan.json"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama31_8b", "gpt_oss_20b"])
def test_transformers_computes_the_logits_of_the_trained_model(
    model: str, torch_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPO)
    run, plan = run_of(tmp_path, model, tmp_path / "saved", torch_python)
    case = json.loads(plan.read_text())["case"].replace(":", "_")
    step = tmp_path / "saved" / f"{case}_round1.finished" / "step3"
    suite = REPO / "suites" / model / "pytorch"
    program(torch_python, "write", suite, plan, step)
    command = ["export", str(run), "--format=huggingface", f"--to={tmp_path}"]
    for training, code in (("run2 b", 2), (TRAINING, 0)):
        (step / "training.json").write_text(json.dumps({"identity": {"training": training}}))
        assert main(command) == code
    output = capsys.readouterr()
    assert f"{step} is of a later training of this case" in output.err
    exported = tmp_path / "huggingface" / f"{case}_round1"
    assert output.out.splitlines() == [str(exported / name) for name in ("config.json", "model.safetensors")]
    same, swapped = map(float, program(torch_python, "compare", suite, plan, exported).split())
    assert same < 1e-4
    assert swapped > 1e-2, "the control"


def test_what_cannot_be_exported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPO)
    problems = {"plain": "it wrote no checkpoint; train with --set=checkpoint_dir=DIR", "none": ": no checkpoint; a"}
    for folder, problem in problems.items():
        run, _ = run_of(tmp_path / folder, "llama31_8b", None if folder == "plain" else tmp_path, "")
        assert main(["export", str(run), "--format=huggingface", f"--to={tmp_path}"]) == 2
        assert problem in capsys.readouterr().err
