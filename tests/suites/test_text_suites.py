"""Run the checks of BERT and GLM (<model>_checks.py) in the PyTorch environment, one process per suite."""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MODELS = ("bert", "glm")
Results = dict[str, str | None]


def checks(model: str) -> list[str]:
    """Return the names of a suite's checks without importing the file."""
    body = ast.parse((HERE / f"{model}_checks.py").read_text()).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@pytest.fixture(scope="module")
def results_of(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a suite's checks once and returns the traceback of each check, or None."""

    @cache
    def run(model: str) -> Results:
        script, suite = HERE / f"{model}_checks.py", repo / "suites" / model / "pytorch"
        argv = [torch_python, str(script), str(suite), str(tmp_path_factory.mktemp(model))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        results: Results = json.loads(done.stdout.splitlines()[-1])
        return results

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("model", "check"), [(model, check) for model in MODELS for check in checks(model)])
def test_a_suite(results_of: Any, model: str, check: str) -> None:
    results = results_of(model)
    assert results[check] is None, results[check]
