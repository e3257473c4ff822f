"""The flops_per_sample of every suite and scale are three times the counted forward pass; the MFU uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Catalog, Scale, Suite
from tests.suites import programs
from tests.suites.programs import Results

HERE = Path(__file__).parent
CATALOG = Catalog.scan([HERE.parents[1]])
SUITES = [suite for suite in CATALOG.trainings.values() if suite.framework == "pytorch"]
OTHERS = [suite for suite in CATALOG.trainings.values() if suite.framework != "pytorch"]
SCALES = [(suite.path, scale) for suite in SUITES for scale in suite.scales.values()]
IDS = [f"{path.parent.name}-{scale.name}" for path, scale in SCALES]
WITHIN = 5e-4
"""Tolerance: the count is exact, suite.toml has four digits of it or more."""


@pytest.fixture(scope="module")
def counted(suite_python: Callable[[Path], str], request: pytest.FixtureRequest) -> Results:
    """The FLOPs of one sample's forward pass, by PyTorch's suite, folder of the configs and scale."""
    own = [CATALOG.suite(path.parent.name, "pytorch") for (path,) in programs.selected(request, "path")]
    tasks: dict[Path, list[Any]] = {}
    for suite in (*own, *(suite for (suite,) in programs.selected(request, "other"))):
        of_pytorch = CATALOG.suite(suite.model, "pytorch")
        devices = {scale.name: scale.counted_on for scale in of_pytorch.scales.values()}
        tasks.setdefault(of_pytorch.path, [devices]).append(str(suite.path / "config"))
    return programs.run(suite_python, tasks, "flops")


def problem(declared: float | None, forward: float) -> str | None:
    """Return the problem of a suite's flops_per_sample, None if they are right."""
    if declared is None:
        return f"suite.toml has no flops_per_sample; three forward passes are {3 * forward:.5g}"
    if abs(declared / (3 * forward) - 1) > WITHIN:
        return f"suite.toml has flops_per_sample = {declared:.5g}; three forward passes are {3 * forward:.5g}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("path", "scale"), SCALES, ids=IDS)
def test_flops_are_three_counted_forward_passes(counted: Results, path: Path, scale: Scale) -> None:
    forward = counted[path][str(path / "config")][scale.name]
    assert problem(scale.flops_per_sample, forward) is None
    others = [other.flops_per_sample for other_path, other in SCALES if other_path == path and other is not scale]
    for wrong in (*others, forward, 2 * forward, 3.003 * forward, 1.5 * forward, None):
        assert problem(wrong, forward) is not None, f"{wrong} passes for three times {forward}"


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS, ids=lambda suite: suite.folder)
def test_flops_do_not_depend_on_the_framework(counted: Results, other: Suite) -> None:
    """PyTorch's model with the config of the suite has the FLOPs of the suite."""
    forward = counted[CATALOG.suite(other.model, "pytorch").path][str(other.path / "config")]
    for scale in other.scales.values():
        assert problem(scale.flops_per_sample, forward[scale.name]) is None
        assert problem(scale.flops_per_sample, 1.01 * forward[scale.name]) is not None, "the control"


TOY = """
import torch
from torch import nn
from flagperf_driver import pytorch

def calculate_loss(ctx, model, batch):
    return model(batch[batch[..., 0] > 0]).square().mean()

pytorch.main(pytorch.Steps(
    create_model=lambda ctx: nn.Linear(5, 7),
    create_train_data=lambda ctx: [torch.tensor([1.0, 1.0, -1.0, 1.0]).reshape(1, 4, 1).expand(2, 4, 5)],
    create_eval_data=lambda ctx: [],
    calculate_loss=calculate_loss,
    evaluate_batch=None,
    summarize=None,
    count_samples=lambda ctx, batch: len(batch),
))
"""
"""A suite whose layer gets only the rows that begin with a positive number: three of four in each sample."""


@pytest.mark.slow
def test_a_model_whose_shapes_depend_on_values_is_counted_on_the_cpu(torch_python: str, tmp_path: Path) -> None:
    suite = tmp_path / "suites" / "toy" / "pytorch"
    (suite / "config").mkdir(parents=True)
    for file in ("_base.py", "_small.py"):
        (suite / "config" / file).write_text("optimizer = 'sgd'\n")
    (suite / "run_pretraining.py").write_text(TOY)
    config = str(suite / "config")
    on_meta, on_cpu = (
        programs.run(lambda _: torch_python, {suite: [{"small": device}, config]}, "flops")
        for device in ("meta", "cpu")
    )
    assert on_meta.get(suite) is None
    assert "nonzero" in on_meta.errors, on_meta.errors
    forward = on_cpu[suite][config]["small"]
    assert forward == 2 * 5 * 7 * 3
    assert problem(3 * forward, forward) is None
    assert problem(3 * forward * 4 / 3, forward) is not None, "the control: as if all rows were computed"


def test_every_training_is_counted() -> None:
    folders = {path.parent for path in (HERE.parents[1] / "suites").glob("*/pytorch/run_pretraining.py")}
    assert {path for path, _ in SCALES} == folders
