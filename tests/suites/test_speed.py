"""One training step of every suite has nothing that slows a device down: speed.py checks it on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.catalog import REFERENCE, Catalog, Goal, Suite
from tests.suites import programs
from tests.suites.programs import Results

HERE = Path(__file__).resolve().parent
CATALOG = [suite for suite in Catalog.scan([HERE.parents[1]]).trainings.values() if suite.framework == "pytorch"]
SUITES = [suite.path for suite in CATALOG]
WAITS = {
    "faster_rcnn": {"nms", "tolist"},
    "mask_rcnn": {"nms", "nonzero", "tolist"},
}
"""By model, the operations that wait for the device: the host must know how many boxes are left, and of what size."""
MASKED = {"glm", "gpt_oss_20b", "swin_transformer", "transformer"}
"""Models whose attention needs a mask: text of different lengths, a trained bias, or a window."""
APART = {"gpt_oss_20b", "llama31_8b", "llama32_1b"}
"""Models whose products stay apart: tensor parallelism divides each of them, and each alone fills a device."""
LAYERS = {
    "bert": "num_hidden_layers", "cpm": "num_layers", "flux1": "num_single_blocks", "glm": "num_layers",
    "llama32_1b": "num_layers", "vit": "depth",
}  # fmt: skip
"""By model, the key with the number of its layers."""
LAUNCH_S = 5e-6
"""Time in which a host launches an operation."""
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
    "list": {"tokens": "x = x * sum(x.flatten().tolist())"},
    "copy to the device": {"tokens": "x = x * torch.tensor(2.0, device=x.device)"},
    "graph break": {"tokens": "torch._dynamo.graph_break()"},
    "graph for each step": {"tokens": "self.calls += 1; x = x * self.calls"},
    "layout": {"image": "x = x.contiguous()"},
    "layout over time": {"tokens": "x = functional.conv1d(x.transpose(1, 2), self.linear.weight[..., None]).mT"},
    "attention": {"tokens": "x = functional.dropout((x @ x.transpose(1, 2) / 3).softmax(-1), 0.1) @ x"},
    "mask of attention": {"tokens": GOOD.replace("x)", "x, x.new_zeros(x.shape[1], x.shape[1]))")},
    "expanded mask": {"tokens": GOOD.replace("x)", "x, x.new_zeros(1).expand(x.shape[1], x.shape[1]))")},
    "small operations": {"tokens": "for _ in range(3000): x = x + 1.5 * x"},
    "product": {"tokens": "x = self.linear(x) + functional.linear(x, self.linear.weight.mT)"},
    "package": {"tokens": "import soundfile"},
    "float32": {"tokens": "with torch.autocast('cpu', enabled=False): x = x.float() @ x.float().transpose(1, 2)"},
}
"""By name, the parts of the toy that differ from the good one."""
REFUSED = {
    "item": ("read_back", "_local_scalar_dense"),
    "mask": ("read_back", "masked index"),
    "list": ("read_back", "tolist"),
    "copy to the device": ("read_back", "tensor()"),
    "graph break": ("graph", "not one graph"),
    "graph for each step": ("graph", "graph"),
    "layout": ("layout", "convolution"),
    "layout over time": ("layout", "3-D"),
    "attention": ("attention", "_softmax"),
    "product": ("product", "linear"),
    "package": ("packages", "soundfile"),
    "mask of attention": ("mask", "flash"),
    "expanded mask": ("graph", "strides (0, 0)"),
    "float32": ("precision", "bmm"),
}
"""By broken toy, the check that refuses it and a word of the message."""


def launch_problem(count: int, goal: Goal) -> str | None:
    """Return a problem if launching takes more of a step's time than the goal leaves."""
    step, launching = goal.batch / goal.rate, count * LAUNCH_S
    if launching <= step:
        return None
    return f"{count} launches take {launching:.3g} s; a step at {goal.rate:g} samples/s takes {step:.3g} s"


@pytest.fixture(scope="module")
def launched(suite_python: Callable[[Path], str], request: pytest.FixtureRequest) -> Results:
    """The number of operations that a step of the reference model launches, by suite."""
    suites = [suite for (suite,) in programs.selected(request, "with_goal")]
    tasks = {suite.path: (suite.scales[REFERENCE].counted_on,) for suite in suites}
    return programs.run(suite_python, tasks, "speed", "launches")


@pytest.mark.slow
@pytest.mark.parametrize("with_goal", [suite for suite in CATALOG if suite.goal], ids=lambda suite: suite.model)
def test_the_goal_leaves_time_for_the_launches_of_a_step(launched: Results, with_goal: Suite) -> None:
    suite, count = with_goal, launched[with_goal.path]
    assert suite.goal is not None
    if suite.scales[REFERENCE].counted_on == "cpu":
        count *= int(suite.goal.batch)  # at most: a part of the operations runs once for each sample
    assert count > 100, f"{suite.name}: {count} operations were counted"
    assert launch_problem(count, suite.goal) is None
    faster = replace(suite.goal, rate=suite.goal.batch / (0.9 * count * LAUNCH_S))
    assert "launches take" in (launch_problem(count, faster) or ""), "the control: a goal that leaves too little time"


@pytest.mark.slow
def test_many_small_operations_are_counted(torch_python: str, toys: Path) -> None:
    suites = [toys / name / "pytorch" for name in ("good", "small operations")]
    counts = programs.run(lambda _: torch_python, {suite: [] for suite in suites}, "speed", "launches")
    few, many = (counts[suite] for suite in suites)
    assert many - few >= 2 * 3000, "a forward and a backward operation of each"
    goal = Goal("H200", rate=1000, batch=10, source="a step of 10 ms")
    assert launch_problem(few, goal) is None
    assert launch_problem(many, goal) is not None


@pytest.fixture(scope="module")
def measured(suite_python: Callable[[Path], str], request: pytest.FixtureRequest) -> Results:
    """The problems of a training step, by suite."""
    tasks = {suite: () for (suite,) in programs.selected(request, "suite")}
    return programs.run(suite_python, tasks, "speed", "problems")


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.parent.name)
def test_a_training_step_has_nothing_slow(measured: Results, suite: Path) -> None:
    problems = measured[suite]
    checks = {"packages", "read_back", "layout", "attention", "mask", "precision", "product", "graph"}
    assert set(problems) == checks, problems
    # The host must know a shape that depends on values, such as the number of boxes that are left.
    waits = {problem.partition("(")[0] for problem in problems["read_back"]}
    assert waits == WAITS.get(suite.parent.name, set()), problems
    allowed = {"read_back"} if waits else set()
    allowed |= {"mask"} if suite.parent.name in MASKED else set()
    allowed |= {"product"} if suite.parent.name in APART else set()
    assert {check for check, found in problems.items() if found} == allowed, problems


@pytest.mark.slow
def test_models_of_equal_layers_compile_one_layer_for_all(torch_python: str) -> None:
    """Else compiling takes as long as all layers: minutes."""
    root = HERE.parents[1] / "suites"
    tasks = {root / model / "pytorch": [layers] for model, layers in LAYERS.items()}
    found = programs.run(lambda _: torch_python, tasks, "speed", "sizes")
    for suite in tasks:
        (two, four), (whole_two, whole_four) = found[suite]["own"], found[suite]["whole"]
        assert two == four > 0, suite
        assert whole_four > whole_two, "the control: the whole model grows with its layers"


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of toys."""
    root = tmp_path_factory.mktemp("toys") / "suites"
    for name, parts in BROKEN.items():
        suite = root / name / "pytorch"
        (suite / "config").mkdir(parents=True)
        for file in ("_base.py", "_small.py"):
            (suite / "config" / file).write_text("optimizer = 'sgd'\n")
        code = TOY.format(**{"image": "pass", "tokens": GOOD, "width": "0", **parts})
        (suite / "run_pretraining.py").write_text(code)
    return root


@pytest.fixture(scope="module")
def toys_measured(torch_python: str, toys: Path) -> dict[str, Problems]:
    """The problems of a training step, by the name of the toy."""
    suites = {name: toys / name / "pytorch" for name in BROKEN if name != "small operations"}
    results = programs.run(lambda _: torch_python, {suite: [] for suite in suites.values()}, "speed", "problems")
    return {name: results[suite] for name, suite in suites.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "several shapes"])
def test_a_good_step_passes(toys_measured: dict[str, Problems], name: str) -> None:
    assert not any(toys_measured[name].values()), toys_measured[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_slow_step_is_refused_with_its_place(toys_measured: dict[str, Problems], name: str) -> None:
    check, word = REFUSED[name]
    found = toys_measured[name].get(check, [])
    assert any(word in problem for problem in found), toys_measured[name]
    if check not in ("graph", "packages"):
        assert any("Toy" in problem and "run_pretraining.py:" in problem for problem in found), found
