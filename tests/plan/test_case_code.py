"""The fingerprint of a case covers the code that the case uses, and no other code."""

import shutil
from pathlib import Path

import pytest

import flagperf_driver
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.plan.fingerprint import code_hash
from pytest_flagperf.plan.make import driver_code
from tests.helpers.trees import SUITE_TOML, tree, write, write_suite

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(flagperf_driver.__file__).parent


def test_the_suites_of_this_repository_depend_on_their_own_readers_only(tmp_path: Path) -> None:
    for name in ("common", "bert/pytorch", "glm/pytorch", "resnet50/pytorch"):
        shutil.copytree(REPO / "suites" / name, tmp_path / "suites" / name)
    catalog = Catalog.scan([tmp_path])

    def changed_by(name: str) -> set[str]:
        before = {suite.model: code_hash(*suite.code) for suite in catalog.suites.values()}
        with (tmp_path / "suites" / name).open("a", encoding="utf-8") as file:
            file.write("\n# changed\n")
        return {suite.model for suite in catalog.suites.values() if code_hash(*suite.code) != before[suite.model]}

    assert changed_by("common/images/folders.py") == {"resnet50"}
    assert changed_by("common/language/mlperf_shards.py") == {"bert", "glm"}
    assert changed_by("glm/pytorch/record.py") == changed_by("glm/pytorch/new.py") == {"glm"}
    assert changed_by("common/shares.py") == {"bert", "glm", "resnet50"}
    for other in ("common/images/README.md", "common/images/tests/new.py", "bert/pytorch/tests/bert.py"):
        assert changed_by(other) == set()


def test_an_unknown_folder_of_shared_code_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path, "suites/common/images/__init__.py", "")
    write_suite(tmp_path, toml=f'common = ["image"]\n{SUITE_TOML}')
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
