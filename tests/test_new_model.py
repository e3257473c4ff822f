"""A new model: the command that creates its folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.commands import main
from pytest_flagperf.plan import make_plan
from tests.test_architecture import foreign

REPO = Path(__file__).resolve().parent.parent
MODELS = sorted({suite.model for suite in Catalog.scan([REPO]).suites.values()})
LIKE = "resnet50"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the suites and of one vendor, which is the current folder."""
    for name in ("suites", "vendors/cpu"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("like", MODELS)
def test_the_copy_has_the_files_of_the_suite_except_those_about_the_copied_model(tree: Path, like: str) -> None:
    before = files(tree)
    assert main(["new-model", "new_one", f"--like={like}"]) == 0
    new, old = files(tree / "suites/new_one"), files(tree / "suites" / like)
    left_out = {name for name in old if name.startswith("pytorch/") and name not in new}
    assert left_out == {name for name in old if name.startswith("pytorch/reference/") or name.endswith("original.toml")}
    own = {"README.md", "pytorch/README.md", "test_new_one.py"}
    assert {name for name, text in new.items() if text != old.get(name)} == own
    assert b"class TestNewOne(TrainingBenchmark):" in new["test_new_one.py"]
    assert not [name for name in new if "mlperf" in name]
    assert {name: text for name, text in files(tree).items() if not name.startswith("suites/new_one/")} == before
    assert foreign(tree / "suites/new_one") == []
    for scale in ("small", "reference"):
        suite = Catalog.scan([tree]).suite("new_one", "pytorch")
        assert suite.scales[scale] == Catalog.scan([tree]).suite(like, "pytorch").scales[scale]


def test_its_case_is_planned_and_its_readmes_are_up_to_date(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 0
    output = capsys.readouterr().out
    assert "pytest suites/mixer --nodes=1x1\n" in output
    catalog = Catalog.scan([tree])
    plans = [
        make_plan(catalog, Case.parse(f"{model}:pytorch:CPU:1:1:1"), vendor="cpu", scale="small")
        for model in ("mixer", LIKE)
    ]
    assert plans[0].config == plans[1].config
    readme = (tree / "suites/mixer/pytorch/README.md").read_text()
    assert "| target: top1 |" in readme
    assert "<!-- calibration: written by flagperf calibrate -->" in readme
    assert "No vendor has a config or a result yet." in (tree / "suites/mixer/README.md").read_text()
    main(["readme", "--check"])
    assert "suites/mixer" not in capsys.readouterr().out
    (tree / "suites/mixer/pytorch/README.md").write_text(readme.replace("at least 0.9", "at least 0.8"))  # the control
    assert main(["readme", "--check"]) == 1
    assert "suites/mixer/pytorch/README.md: section case is out of date" in capsys.readouterr().out


def test_lines_that_still_describe_the_copied_model_are_listed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tree / "suites" / LIKE / "pytorch/model.py"
    model.write_text('"""A ResNet-50."""\nFIRST = 1\nNAME = "resnet_50"\n')
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 0
    listed = capsys.readouterr().out.partition(f"These lines still describe {LIKE}:\n")[2]
    assert "  pytorch/model.py:1\n  pytorch/model.py:3\n" in listed
    assert "model.py:2" not in listed


def test_the_copy_passes_the_linter(tree: Path) -> None:
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 0
    shutil.copy(REPO / "pyproject.toml", tree)
    for name in ("tests", "flagperf_driver", "pytest_flagperf"):  # the linter sorts these apart from installed packages
        (tree / name).symlink_to(REPO / name)
    for words in (("check",), ("format", "--check")):
        argv = [sys.executable, "-m", "ruff", *words, "--no-cache", "suites/mixer"]
        done = subprocess.run(argv, capture_output=True, cwd=tree)
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["Mixer", f"--like={LIKE}"], ["'Mixer': expected lowercase letters, digits and _, beginning with a letter"]),
        (["../mixer", f"--like={LIKE}"], ["'../mixer': expected lowercase letters"]),
        (["bert", f"--like={LIKE}"], ["model 'bert' already exists: ", "suites/bert"]),
        (["common", f"--like={LIKE}"], ["'common': ", "suites/common already exists; choose another name"]),
        (["mixer", "--like=resnet"], ["--like=resnet: model 'resnet': no such folder", f"did you mean {LIKE}?"]),
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


def test_a_failed_copy_leaves_no_folder(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device", "suites/mixer")

    monkeypatch.setattr("pytest_flagperf.commands.source_tree.skeletons.of_model", fail)
    before = files(tree)
    assert main(["new-model", "mixer", f"--like={LIKE}"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert files(tree) == before
    assert not [path for path in (tree / "suites").iterdir() if "mixer" in path.name]


def test_a_similar_name_of_another_model_is_noted(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-model", "berts", f"--like={LIKE}"]) == 0
    assert "note: a model with a similar name exists; did you mean bert?" in capsys.readouterr().out
