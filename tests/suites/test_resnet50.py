"""Run the checks of ResNet-50 and of the vision suites' images in the PyTorch environment, one process per file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("images_checks.py", "resnet50_checks.py")


def checks(file: str) -> list[str]:
    """Return the names of a file's checks; the file cannot be imported here."""
    body = ast.parse((HERE / file).read_text()).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


CHECKS = [(file, name) for file in FILES for name in checks(file)]
Results = Callable[[str], dict[str, str | None]]


@pytest.fixture(scope="module")
def results(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    paths = [repo, repo / "suites", repo / "suites/resnet50/pytorch"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}

    @cache
    def run(file: str) -> dict[str, str | None]:
        argv = [torch_python, str(HERE / file), str(tmp_path_factory.mktemp("checks"))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
        tracebacks: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return tracebacks

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("file", "check"), CHECKS, ids=[name for _, name in CHECKS])
def test_check(results: Results, file: str, check: str) -> None:
    assert results(file)[check] is None, results(file)[check]
