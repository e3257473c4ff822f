"""GLM's mask, positions, scoring and readers, checked where torch is: one subprocess runs glm_checks.py."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("glm_checks.py")
NAMES = [
    node.name
    for node in ast.parse(CHECKS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def results(torch_python: str, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    argv = [torch_python, str(CHECKS), str(repo / "suites/glm/pytorch"), str(tmp_path_factory.mktemp("glm"))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", NAMES)
def test_glm(results: dict[str, str | None], check: str) -> None:
    assert results[check] is None, results[check]
