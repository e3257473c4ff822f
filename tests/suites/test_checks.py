"""Run the checks of a suite in the environment of its framework, one suite at a time.

A suite's checks are the functions ``check_...`` in ``suites/<model>/<framework>/tests/*.py``, and those of shared code
are in ``suites/common/**/tests``. The checks of a new suite are found without a change here.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog
from tests.suites import programs, reference
from tests.suites.programs import Results

REPO = Path(__file__).resolve().parents[2]


def files_of_suites(root: Path) -> dict[Path, list[Path]]:
    """Return by a suite's folder the files of checks that its process runs.

    The first suite that uses shared code also runs the checks of that code. PyTorch's suites come first, because these
    checks include those of steps.py, which uses PyTorch.
    """
    suites = Catalog.scan([root]).suites.values()
    shared = root / "suites" / "common"
    left = {shared / "tests", *shared.glob("*/tests")}
    files: dict[Path, list[Path]] = {}
    for suite in sorted(suites, key=lambda suite: (suite.framework != "pytorch", suite.path)):
        folders = {shared / "tests", *(shared / name / "tests" for name in suite.common)} & left
        left -= folders
        files[suite.path] = sorted(file for folder in (suite.path / "tests", *folders) for file in folder.glob("*.py"))
    return {suite: found for suite, found in files.items() if found}


def names(file: Path) -> list[str]:
    """Return the names of a file's checks; the file cannot be imported here."""
    body = ast.parse(file.read_text()).body
    own = [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
    if file.name != "reference.py":
        return own
    targets = (target for node in body if isinstance(node, ast.Assign) for target in node.targets)
    given = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return [*own, *(check.__name__ for check, needed in reference.NEEDS.items() if needed in given)]


FILES = files_of_suites(REPO)
TRAININGS = [suite.path for suite in Catalog.scan([REPO]).trainings.values()]
CHECKS = [(suite, file, name) for suite, files in FILES.items() for file in files for name in names(file)]
IDS = [f"{file.relative_to(REPO / 'suites').as_posix()}-{name}" for _, file, name in CHECKS]


@pytest.fixture(scope="module")
def results(
    suite_python: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Results:
    """The traceback of each check, None or the reason why it was skipped, by suite, file and check."""
    files: dict[Path, set[str]] = {}
    for suite, file, _ in programs.selected(request, "suite", "file", "check"):
        files.setdefault(suite, set()).add(str(file))
    tasks = {suite: [sorted(of_suite)] for suite, of_suite in files.items()}
    return programs.run(suite_python, tasks, "checking", "check", str(tmp_path_factory.mktemp("checks")))


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "file", "check"), CHECKS, ids=IDS)
def test_check(results: Results, suite: Path, file: Path, check: str) -> None:
    result = results[suite][str(file)][check]
    if isinstance(result, dict):
        pytest.skip(result["skipped"])
    assert result is None, result


def test_every_suite_has_checks_and_no_file_is_left_out_or_is_a_test_of_pytest_suites() -> None:
    suites = {path.parent for path in REPO.glob("suites/*/*/suite.toml")}
    assert set(FILES) == suites
    found = [file for files in FILES.values() for file in files]
    assert sorted(found) == sorted(REPO.glob("suites/**/tests/*.py"))
    assert [file for file in found if file.match("test_*.py") or file.match("*_test.py")] == []


@pytest.mark.parametrize("suite", TRAININGS, ids=lambda suite: f"{suite.parent.name}-{suite.name}")
def test_every_training_checks_its_reference_data_and_a_step_of_its_model(suite: Path) -> None:
    shared = {check.__name__ for check in list(reference.NEEDS)[:3]}
    assert {*names(suite / "tests/reference.py")} >= shared


@pytest.mark.slow
def test_a_new_suite_is_found_and_its_failing_check_fails(torch_python: str, tmp_path: Path) -> None:
    shutil.copytree(REPO / "suites" / "common", tmp_path / "suites" / "common")
    suite = tmp_path / "suites" / "newmodel" / "pytorch"
    shutil.copytree(REPO / "suites" / "resnet50" / "pytorch", suite)
    shutil.rmtree(suite / "tests")
    (suite / "tests").mkdir()
    checks = suite / "tests" / "newmodel.py"
    checks.write_text(
        "import unittest\n\ndef check_one():\n    pass\n\ndef check_two():\n    assert 1 == 2, 'two is wrong'\n\n"
        "def check_three():\n    raise unittest.SkipTest('no third package')\n"
    )
    files = files_of_suites(tmp_path)
    assert checks in files[suite]
    argv = "checking", "check", str(tmp_path / "scratch")
    result = programs.run(lambda _: torch_python, {suite: [[str(checks)]]}, *argv)[suite][str(checks)]
    assert result["check_one"] is None
    assert "two is wrong" in (result["check_two"] or "")
    assert result["check_three"] == {"skipped": "no third package"}
