"""A vendor's own steps: which names replace a step, which are refused, and that nothing else changes."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flagperf_driver.extern import (
    HOOKS,
    NOT_REPLACEABLE,
    REPLACEABLE,
    ExternError,
    load_functions,
    load_steps,
    replaced_steps,
)
from tests.driver.lab import REPO


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def extern(folder: Path, adapter: str, **others: str) -> Path:
    for name, text in {"trainer_adapter": adapter, **others}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_functions_replace_by_name_and_imported_private_and_constant_names_do_not(tmp_path: Path) -> None:
    steps = load_steps(extern(tmp_path, "def convert_model(ctx, model): return 'ours'\n"))
    assert list(steps) == ["convert_model"]
    assert steps["convert_model"](None, None) == "ours"
    text = "from os.path import join as join_paths\nfrom json import *\nLIMIT = 3\ndef _helper(): pass\nclass A: pass\n"
    assert load_steps(extern(tmp_path, text)) == {}
    text = "from os.path import join as model_to_ddp\nfrom json import loads as backward\nbackward = [backward][0]\n"
    with pytest.raises(ExternError) as error:
        load_steps(extern(tmp_path, text))
    (problem,) = error.value.problems
    assert "trainer_adapter.py:1: 'model_to_ddp' is a step, and an import cannot replace a step; import the" in problem
    text = "import json\ncreate_optimizer = json.loads\nif True:\n    model_to_ddp = len\n"
    text += "backward: object = len\nconvert_model, other = len, 1\nclass prepare_batch(dict): pass\n"
    steps = load_steps(extern(tmp_path, text))
    assert steps.keys() == {"create_optimizer", "model_to_ddp", "backward", "convert_model", "prepare_batch"}
    assert steps["create_optimizer"]("1") == 1
    assert steps["model_to_ddp"] is len


def test_every_step_is_replaceable_or_not_and_unknown_functions_have_near_matches(tmp_path: Path) -> None:
    text = "def convert_modle(): pass\n\ndef train_faster(): pass\n"
    with pytest.raises(ExternError) as error:
        load_steps(extern(tmp_path, text))
    first, second = error.value.problems
    assert "trainer_adapter.py:1: 'convert_modle' is not a step that can be replaced" in first
    assert "; did you mean 'convert_model'" in first
    assert "trainer_adapter.py:3: 'train_faster'" in second
    assert f"choose from {', '.join(sorted(REPLACEABLE))}" in second
    names = []
    for file, name in (("training/steps.py", "Steps"), ("pytorch/steps.py", "PyTorchSteps")):
        tree = ast.parse((REPO / "flagperf_driver" / file).read_text(encoding="utf-8"))
        (steps,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        names += [one.target.id for one in steps.body if isinstance(one, ast.AnnAssign) and hasattr(one.target, "id")]
    assert sorted(names) == sorted([*REPLACEABLE, *NOT_REPLACEABLE])


def test_replaced_steps_have_names_and_lines_and_the_file_is_not_run(tmp_path: Path) -> None:
    text = "raise SystemExit\n\ndef backward(ctx, loss, scaler): pass\n\nif True:\n    convert_model = print\n"
    assert replaced_steps(extern(tmp_path, text)) == {"backward": 3, "convert_model": 6}
    assert replaced_steps(None) == {}
    assert load_steps(extern(tmp_path, "raise SystemExit\n")) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("convert_model = 3\n", "'convert_model' replaces a step, so it must be a function; got int"),
        ("x = 1\ndef (\n", r"trainer_adapter\.py:2: "),
        ("def backward(): pass\n\0", r"trainer_adapter.py:?1?: source code (string )?cannot contain null bytes"),
    ],
)
def test_a_file_that_is_no_adapter_is_reported(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ExternError, match=problem):
        load_steps(extern(tmp_path, text))


def test_a_folder_without_an_adapter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "trainer_adaptor.py").touch()
    with pytest.raises(ExternError, match=r"trainer_adapter\.py not found.*found trainer_adaptor\.py"):
        load_steps(tmp_path)


def test_no_folder_and_an_empty_package_replace_nothing(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    assert load_steps(None) == load_steps(tmp_path / "missing") == load_steps(tmp_path) == {}


@pytest.mark.parametrize("how", ["from .ourlayers import NAME", "from ourlayers import NAME"])
@pytest.mark.parametrize("init", [False, True])
def test_neighbours_can_be_imported(tmp_path: Path, how: str, init: bool) -> None:
    text = how + "\ndef convert_model(ctx, model): return NAME\n"
    folder = extern(tmp_path, text, ourlayers="NAME = 'fused'\n", **({"__init__": ""} if init else {}))
    assert load_steps(folder)["convert_model"](None, None) == "fused"


def test_the_suites_modules_come_before_neighbours_and_without_these_the_path_stays(tmp_path: Path) -> None:
    text = "import json\ndef convert_model(ctx, model): return json.__name__, hasattr(json, 'loads')\n"
    folder = extern(tmp_path, text, json="", string="")
    assert load_steps(folder)["convert_model"](None, None) == ("json", True)
    assert sys.path[-1] == str(folder)
    before = list(sys.path)
    load_steps(extern(tmp_path, "def convert_model(ctx, model): pass\n"))
    assert sys.path == before
    assert "trainer_adapter" not in sys.modules


def test_a_device_file_cannot_import_its_neighbours(tmp_path: Path) -> None:
    before = list(sys.path)
    (tmp_path / "probe.py").write_text("raise AssertionError('device.py imported its neighbour')\n")
    path = tmp_path / "device.py"
    path.write_text("LIMIT = 3\ndef memory(device): return LIMIT\n")
    assert load_functions(path, HOOKS, "device hook")["memory"](None) == 3
    assert sys.path == before
    assert "device" not in sys.modules
    path.write_text("from .probe import parse\ndef memory(device): pass\n")
    with pytest.raises(ImportError):
        load_functions(path, HOOKS, "device hook")


def test_the_list_of_hooks_is_complete_and_the_page_names_each() -> None:
    tree = ast.parse((REPO / "flagperf_driver" / "pytorch" / "hooks.py").read_text(encoding="utf-8"))
    (hooks,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Hooks"]
    fields = [node.target.id for node in hooks.body if isinstance(node, ast.AnnAssign)]  # type: ignore[union-attr]
    assert fields == list(HOOKS)
    page = (REPO / "docs" / "vendors.md").read_text(encoding="utf-8")
    named = page.partition("has their arguments and defaults:")[2].partition("Only PyTorch has hooks")[0]
    assert [hook for hook in HOOKS if f"`{hook}`" not in named] == []
