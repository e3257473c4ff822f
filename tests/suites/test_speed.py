"""One training step of every suite has nothing that slows a device down: speed.py checks it on the CPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog

HERE = Path(__file__).resolve().parent
SUITES = [suite.path for suite in Catalog.scan([HERE.parents[1]]).suites.values() if suite.framework == "pytorch"]
Problems = dict[str, list[str]]

TOY = """
import torch
from torch import nn
from torch.nn import functional
from flagperf_driver import pytorch

class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, 3, padding=1)
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        {image}
        x = self.linear(self.convolution(x).flatten(2).transpose(1, 2))
        {tokens}
        return x.float().square().mean()

pytorch.main(pytorch.Steps(
    create_model=lambda ctx: Toy(),
    create_train_data=lambda ctx: [
        torch.randn(2, 4, 4, 4 + {width}).to(memory_format=torch.channels_last) for i in range(20)
    ],
    create_eval_data=lambda ctx: [],
    calculate_loss=lambda ctx, model, batch: model(batch),
    evaluate_batch=None,
    summarize=None,
    count_samples=lambda ctx, batch: 2,
))
"""
GOOD = "x = functional.scaled_dot_product_attention(x, x, x)"
BROKEN = {
    "good": {},
    "several shapes": {"width": "i % 2"},
    "item": {"tokens": "x = x * x.sum().item()"},
    "mask": {"tokens": "x = x[x > 0]"},
    "graph break": {"tokens": "torch._dynamo.graph_break()"},
    "graph for each step": {"tokens": "self.calls += 1; x = x * self.calls"},
    "layout": {"image": "x = x.contiguous()"},
    "attention": {"tokens": "x = functional.dropout((x @ x.transpose(1, 2) / 3).softmax(-1), 0.1) @ x"},
    "float32": {"tokens": "with torch.autocast('cpu', enabled=False): x = x.float() @ x.float().transpose(1, 2)"},
}
"""By name, the parts of the toy that differ from the good one."""
REFUSED = {
    "item": ("read_back", "_local_scalar_dense"),
    "mask": ("read_back", "masked index"),
    "graph break": ("graph", "not one graph"),
    "graph for each step": ("graph", "graph"),
    "layout": ("layout", "convolution"),
    "attention": ("attention", "_softmax"),
    "float32": ("precision", "bmm"),
}
"""By broken toy, the check that refuses it and a word of the message."""


def measured(python: str, *suites: Path) -> dict[str, Problems]:
    """Return the problems by the name of the suite's folder; suites that share a process have no other modules."""
    argv = [python, "-B", str(HERE / "speed.py"), *map(str, suites)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Problems] = json.loads(done.stdout.splitlines()[-1])
    return {Path(folder).name: problems for folder, problems in results.items()}


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.parent.name)
def test_a_training_step_has_nothing_slow(suite_python: Callable[[Path], str], suite: Path) -> None:
    problems = measured(suite_python(suite), suite)[suite.name]
    assert set(problems) == {"read_back", "layout", "attention", "precision", "graph"}, problems
    assert {check: found for check, found in problems.items() if found} == {}


@pytest.fixture(scope="module")
def toys(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Problems]:
    root = tmp_path_factory.mktemp("toys") / "suites" / "toy"
    for name, parts in BROKEN.items():
        (root / name / "config").mkdir(parents=True)
        for file in ("_base.py", "_small.py"):
            (root / name / "config" / file).write_text("optimizer = 'sgd'\n")
        code = TOY.format(**{"image": "pass", "tokens": GOOD, "width": "0", **parts})
        (root / name / "run_pretraining.py").write_text(code)
    return measured(torch_python, *(root / name for name in BROKEN))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "several shapes"])
def test_a_good_step_passes(toys: dict[str, Problems], name: str) -> None:
    assert not any(toys[name].values()), toys[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_slow_step_is_refused_with_its_place(toys: dict[str, Problems], name: str) -> None:
    check, word = REFUSED[name]
    found = toys[name].get(check, [])
    assert any(word in problem for problem in found), toys[name]
    if check != "graph":
        assert any("Toy" in problem and "run_pretraining.py:" in problem for problem in found), found
