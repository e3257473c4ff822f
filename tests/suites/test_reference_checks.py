"""Run the checks in the suites' folders (suites/<model>/<framework>/checks/*.py), one process per suite."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog

REPO = Path(__file__).resolve().parents[2]
SUITES = [suite.path for suite in Catalog.scan([REPO]).suites.values()]
Results = Callable[[Path], dict[str, str | None]]


def checks(suite: Path) -> list[str]:
    """Return the names of a suite's checks, ``<module>.<function>``, without importing them."""
    return [
        f"{file.stem}.{node.name}"
        for file in sorted(suite.glob("checks/*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


@pytest.fixture(scope="module")
def results_of(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return a function that runs a suite's checks once and returns the traceback of each check, or None."""

    @cache
    def run(suite: Path) -> dict[str, str | None]:
        argv = [torch_python, str(Path(__file__).parent / "checking.py"), str(suite), str(tmp_path_factory.mktemp("s"))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        tracebacks: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return tracebacks

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "check"), [(suite, check) for suite in SUITES for check in checks(suite)])
def test_check(results_of: Results, suite: Path, check: str) -> None:
    assert results_of(suite)[check] is None, results_of(suite)[check]


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.parent.name)
def test_every_suite_checks_its_reference_data_and_model(suite: Path) -> None:
    assert {name.split(".")[0] for name in checks(suite)} >= {"reference_data", "reference_model"}
