"""The fingerprint of a case covers the code that the case uses, and no other code."""

import shutil
from pathlib import Path

import pytest

import flagperf_driver
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.plan.fingerprint import code_hash
from pytest_flagperf.plan.make import driver_code
from tests.helpers.trees import tree, write

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(flagperf_driver.__file__).parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A suite that uses one of two folders of shared code."""
    tree(tmp_path)
    for name in ("shares.py", "images/__init__.py", "images/tests/one.py", "language/__init__.py"):
        write(tmp_path, f"suites/common/{name}", "")
    declare(tmp_path, "images")
    return tmp_path


def declare(root: Path, folder: str) -> None:
    toml = root / "suites/toy/pytorch/suite.toml"
    toml.write_text(f'common = ["{folder}"]\n' + toml.read_text())


def hashed(root: Path) -> str:
    return code_hash(*Catalog.scan([root]).suite("toy", "pytorch").code)


@pytest.mark.parametrize("name", ["toy/pytorch/new.py", "common/images/new.py", "common/shares.py"])
def test_code_that_the_case_uses_changes_the_fingerprint(root: Path, name: str) -> None:
    before = hashed(root)
    write(root, f"suites/{name}", "changed = True\n")
    assert hashed(root) != before


@pytest.mark.parametrize(
    "name",
    ["common/language/new.py", "common/images/tests/one.py", "common/images/README.md", "toy/pytorch/tests/toy.py"],
)
def test_other_code_checks_and_documents_do_not(root: Path, name: str) -> None:
    before = hashed(root)
    write(root, f"suites/{name}", "changed = True\n")
    assert hashed(root) == before


def test_the_suites_of_this_repository_depend_on_their_own_readers_only(tmp_path: Path) -> None:
    for name in ("common", "bert/pytorch", "glm/pytorch", "resnet50/pytorch"):
        shutil.copytree(REPO / "suites" / name, tmp_path / "suites" / name)
    catalog = Catalog.scan([tmp_path])

    def changed_by(name: str) -> set[str]:
        before = {suite.model: code_hash(*suite.code) for suite in catalog.suites.values()}
        file = tmp_path / "suites" / name
        file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
        return {suite.model for suite in catalog.suites.values() if code_hash(*suite.code) != before[suite.model]}

    assert changed_by("common/images/folders.py") == {"resnet50"}
    assert changed_by("common/language/mlperf_shards.py") == {"bert", "glm"}
    assert changed_by("glm/pytorch/record.py") == {"glm"}
    assert changed_by("common/shares.py") == {"bert", "glm", "resnet50"}
    assert changed_by("common/images/README.md") == changed_by("bert/pytorch/tests/bert.py") == set()


def test_an_unknown_folder_of_shared_code_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path, "suites/common/images/__init__.py", "")
    declare(tmp_path, "image")
    with pytest.raises(CatalogError, match=r"common is 'image'; allowed: images; did you mean images\?"):
        _ = Catalog.scan([tmp_path]).suite("toy", "pytorch").metric


def files_of(framework: str) -> set[Path]:
    return {file for tree in driver_code(framework) for file in (tree.rglob("*.py") if tree.is_dir() else [tree])}


def test_the_driver_code_of_a_case_is_that_of_its_rank() -> None:
    files = files_of("pytorch")
    assert {DRIVER / "driver.py", DRIVER / "training/loop.py", DRIVER / "pytorch/trainer.py"} <= files
    assert not {file for file in files if DRIVER / "node" in file.parents}
    assert DRIVER / "pytorch/trainer.py" not in files_of("paddle")


def test_the_checks_that_run_in_a_training_belong_to_its_code(tmp_path: Path) -> None:
    training = shutil.copytree(DRIVER / "training", tmp_path / "training")
    before = code_hash(training)
    (training / "checks/replicas.py").write_text("changed = True\n")
    assert code_hash(training) != before
