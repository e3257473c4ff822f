"""Follow docs/models.md step by step for a small model, and test the command that creates a model's folder."""

import ast
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.commands import main
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from tests.helpers.walk import Copy
from tests.repository.test_architecture import foreign
from tools import markers, run_tool
from tools import readme as readme_tool

REPO = Path(__file__).resolve().parents[2]
MODELS = sorted({suite.model for suite in Catalog.scan([REPO]).trainings.values()})
LIKE = "resnet50"
PAGE = REPO / "docs" / "models.md"


@pytest.fixture(scope="module")
def walked(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Run all steps of the page; tests/docs/test_how_to.py trains an unchanged copy, and the rules are tested below."""
    copy = Copy(tmp_path_factory.mktemp("walked"))
    rules = "pytest tests/suites/test_targets.py tests/repository/test_architecture.py"
    copy.follow("models.md", "suite.toml", plan="pytest suites/gru -k converges --nodes=1x1", collect_only=rules)
    return copy


def outside(copy: Copy, folder: str) -> list[str]:
    """Return what Git reports outside a folder, without files whose generated sections alone differ."""
    lines = copy.git("status", "--porcelain").splitlines()
    return [line for line in lines if line != f"?? {folder}/" and not only_generated(copy, line[3:])]


def only_generated(copy: Copy, name: str) -> bool:
    """Return whether a document differs from the committed one in its generated sections only."""
    if not re.fullmatch(r"(README|docs/support|reports/published/README)[.\w]*\.md", name):
        return False
    texts = [(copy.root / name).read_text(encoding="utf-8"), copy.git("show", f"HEAD:{name}")]
    return markers.hand_written(texts[0]) == markers.hand_written(texts[1])


@pytest.mark.slow
def test_adding_a_model_takes_one_folder_and_it_reaches_its_calibrated_target(walked: Copy) -> None:
    assert "?? suites/gru/" in walked.git("status", "--porcelain").splitlines()
    assert outside(walked, "suites/gru") == []
    assert foreign(walked.root / "suites/gru") == []
    controls = {"suites/common/more.py": "", "README.md": f"more\n{(walked.root / 'README.md').read_text()}"}
    for name, text in controls.items():
        walked.write(name, text)
    assert outside(walked, "suites/gru") == [" M README.md", "?? suites/common/more.py"]
    (walked.root / "suites/common/more.py").unlink()
    walked.git("checkout", "README.md")
    trained, untrained, mislabelled, calibrating = (
        {(case["case"], round_["state"], case["converged"]) for case in run["cases"] for round_ in case["outcomes"]}
        for run in walked.runs
    )
    one, two = (f"gru:pytorch:CPU:1:{cards}:1" for cards in (1, 2))
    assert trained == {(one, "finished", 1), (two, "finished", 1)}
    assert untrained == mislabelled == {(one, "finished", 0)}
    assert {name for name, _, _ in calibrating} == {f"{name.rpartition(':')[0]}:5" for name in (one, two)}
    suite = Catalog.scan([walked.root]).suite("gru", "pytorch")
    assert suite.reference("small") is not None
    assert markers.CALIBRATION in (suite.path / "README.md").read_text()
    assert "\ntarget = 0.6\n" in (REPO / "docs/examples/gru/pytorch/suite.toml").read_text(encoding="utf-8")
    assert 0.7 < (suite.scales["small"].target.value or 0) < 1


def fields_of_context() -> list[str]:
    """Return the fields of the steps' context in PyTorch; its module imports the framework."""
    fields = []
    for file, name in (("training/steps.py", "Context"), ("pytorch/context.py", "PyTorchContext")):
        module = ast.parse((REPO / "flagperf_driver" / file).read_text(encoding="utf-8"))
        (context,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
        fields += [node.target for node in context.body if isinstance(node, ast.AnnAssign)]
    return [field.id for field in fields if isinstance(field, ast.Name)]


def described(heading: str) -> list[str]:
    table = PAGE.read_text(encoding="utf-8").partition(f"| {heading} | contents |\n|---|---|\n")[2].partition("\n\n")[0]
    return re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))


def test_the_page_names_all_fields_of_the_context_and_all_files_of_the_copy(tree: Path) -> None:
    fields = fields_of_context()
    assert len(fields) > 10
    properties = ["data_rank", "data_ranks", "parallel"]
    table = described("field of `ctx`")
    more = re.search(r"`Context` in `(.*?)`.* also has\s(.*?)\.\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert more is not None
    assert (REPO / more[1]).is_file()
    assert sorted([*table, *re.findall(r"`(\w+)`", more[2])]) == sorted([*fields, *properties]), "each once"
    assert main(["new-model", "gru", f"--like={LIKE}"]) == 0
    optional = {"pytorch/config/mutable_params.py"}
    assert {*described("file")} == {*files(tree / "suites/gru")} - optional, "the text describes optional files"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the suites and of one vendor, which is the current folder."""
    for name in ("suites", "vendors/cpu"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(tree: Path, model: str) -> Plan:
    case = Case.parse(f"{model}:pytorch:CPU:1:1:1")
    return make_plan(Catalog.scan([tree]), PlanRequest(case, vendor="cpu", scale="small"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("like", MODELS)
def test_the_copy_has_the_files_of_the_suite_except_those_about_the_copied_model(tree: Path, like: str) -> None:
    before = files(tree)
    assert main(["new-model", "new_one", f"--like={like}"]) == 0
    new, old = files(tree / "suites/new_one"), files(tree / "suites" / like)
    left_out = {name for name in old if name.startswith("pytorch/") and name not in new}
    assert left_out == {
        name for name in old if re.match(f"pytorch/(reference/|config/original.toml|tests/{like}.py)", name)
    }
    own = {"README.md", "pytorch/README.md", "test_new_one.py"}
    changed = {name for name, text in new.items() if text != old.get(name)}
    assert changed - {"pytorch/suite.toml"} == own
    assert b"class TestNewOne(TrainingBenchmark):" in new["test_new_one.py"]
    assert not [name for name in new if "mlperf" in name]
    assert {name: text for name, text in files(tree).items() if not name.startswith("suites/new_one/")} == before
    assert foreign(tree / "suites/new_one") == []
    for scale in ("small", "reference"):
        suite = Catalog.scan([tree]).suite("new_one", "pytorch")
        copied = Catalog.scan([tree]).suite(like, "pytorch").scales[scale]
        assert suite.scales[scale] == replace(copied, flops_per_sample=None)
        assert suite.goal is None


def test_its_case_is_planned_and_its_readmes_can_be_filled(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 0
    output = capsys.readouterr().out
    assert "pytest suites/mixer --nodes=1x1\n" in output
    assert planned(tree, "mixer").config == planned(tree, LIKE).config
    run_tool(readme_tool, [])
    readme = (tree / "suites/mixer/pytorch/README.md").read_text()
    assert "| target: top1 |" in readme
    assert "<!-- calibration: written by tools.calibrate -->" in readme
    assert "No vendor has a config or a result yet." in (tree / "suites/mixer/README.md").read_text()
    capsys.readouterr()
    run_tool(readme_tool, ["--check"])
    assert "suites/mixer" not in capsys.readouterr().out
    (tree / "suites/mixer/pytorch/README.md").write_text(readme.replace("at least 0.9", "at least 0.8"))  # the control
    assert run_tool(readme_tool, ["--check"]) == 1
    assert "suites/mixer/pytorch/README.md: section case is out of date" in capsys.readouterr().out


def test_the_copy_passes_the_linter_and_lists_lines_to_change(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 0
    shutil.copy(REPO / "pyproject.toml", tree)
    for name in ("tests", "flagperf_driver", "pytest_flagperf"):  # the linter sorts these apart from installed packages
        (tree / name).symlink_to(REPO / name)
    for words in (("check",), ("format", "--check")):
        argv = [sys.executable, "-m", "ruff", *words, "--no-cache", "suites/mixer"]
        done = subprocess.run(argv, capture_output=True, cwd=tree)
        assert done.returncode == 0, done.stdout.decode()
    suite = tree / "suites" / LIKE / "pytorch"
    (suite / "model.py").write_text(
        '"""A ResNet-50."""\nFIRST = 1\nNAME = "resnet_50"\ndef create_model(ctx): ctx.config.layers\n'
    )
    (suite / "config/_base.py").write_text("first = 1\nlayers = 2\nlayers_of_other = 3\n")
    (suite / "tests/reference.py").write_text("CUT = 1\n\ndef published(): ...\ndef check_published(): ...\n")
    capsys.readouterr()
    assert main(["new-model", "other", f"--like={LIKE}"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.partition("in this order:\n")[2].splitlines()] == [
        "pytorch/model.py: create_model 4, texts 1 3", "pytorch/config/_base.py: layers 2",
        "pytorch/config/_small.py: layers 8, eval_samples 27",
        "pytorch/suite.toml: original_name 6, target 12, target 27",
        "pytorch/tests/reference.py: CUT 1, published 3", "pytorch/run_pretraining.py: texts 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["Mixer", f"--like={LIKE}"], ["'Mixer': expected lowercase letters, digits and _, beginning with a letter"]),
        (["bert", f"--like={LIKE}"], ["model 'bert' already exists: ", "suites/bert"]),
        (["common", f"--like={LIKE}"], ["'common': ", "suites/common already exists; choose another name"]),
        (["mixer", "--like=resnet"], ["--like=resnet: model 'resnet': no such folder", f"did you mean {LIKE}"]),
        (["mixer", f"--like={LIKE}", "--framework=pytroch"], ["no framework 'pytroch'; did you mean pytorch?"]),
        (["Mixer", "--like=resnet"], ["'Mixer': expected", "--like=resnet: model"]),
    ],
)
def test_invalid_options_are_reported_and_leave_no_files(
    tree: Path, arguments: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(tree)
    assert main(["new-model", *arguments]) == 2
    error = capsys.readouterr().err
    assert [message for message in messages if message not in error] == []
    assert files(tree) == before


def test_a_suite_of_another_tree_is_not_copied(
    tree: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(tree / "vendors", other / "vendors")
    (other / "flagperf.toml").write_text(f'roots = [".", "{tree}"]\n')
    monkeypatch.chdir(other)
    shutil.rmtree(tree / "vendors")
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 2
    assert f"this suite is in {tree}, the current tree is {other}" in capsys.readouterr().err
    assert not (other / "suites").exists()


def test_a_failed_copy_is_gone(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device", "suites/mixer")

    monkeypatch.setattr("pytest_flagperf_scaffold.skeletons.of_model", fail)
    before = files(tree)
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert files(tree) == before
    assert not [path for path in (tree / "suites").iterdir() if "mixer" in path.name]
