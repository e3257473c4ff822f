"""Hostile environments for whole commands: no traceback, no hang, a known exit code.

Each try starts a process, so a twentieth of ``--hostile-inputs`` is tried; ``--hostile-inputs=6000`` tries 300.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plugin.conftest import Toy

from .environments import RUNS, Surroundings, Try, attempt, run_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root")]

SEED = 20261126


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with two toy suites."""
    root = tmp_path_factory.mktemp("tree")
    made: Any = SimpleNamespace(path=root)  # the only attribute that the toy needs from pytest's fixture
    toy = Toy(made)
    toy.suite("alpha", "step_s = 0.001\n")
    toy.suite("beta", "step_s = 0.001\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    return root


@pytest.fixture(scope="module")
def stored(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to read."""
    scratch = tmp_path_factory.mktemp("stored")
    around = Surroundings(scratch)
    own = scratch / "tree"
    shutil.copytree(tree, own)
    code, output = run_in([sys.executable, "-m", "pytest", "suites", "--nodes=1x1"], own, around)
    assert code in (0, 1), output
    (run,) = (own / "reports").glob("run*")
    return run


def test_no_environment_leads_to_a_traceback_or_a_hang(
    tree: Path, stored: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    tries = max(1, int(pytestconfig.getoption("hostile_inputs")) // 20)
    found = [finding for number in range(tries) if (finding := _finding(number, tree, stored, tmp_path))]
    assert not found, f"{len(found)} of {tries}:\n" + "\n\n".join(found)


def _finding(number: int, tree: Path, stored: Path, scratch: Path) -> str:
    tried = attempt(SEED, number, tree, stored, scratch)
    # An environment in which pytest itself fails is not ours to mend.
    if tried.finding and tried.words in RUNS and attempt(SEED, number, tree, stored, scratch, plain=True).finding:
        return ""
    return tried.finding


@pytest.mark.parametrize(
    ("words", "around"),
    [
        (("pytest_flagperf", "list"), Surroundings(Path(), {"PYTHONOPTIMIZE": "2"})),
        (("pytest_flagperf", "list"), Surroundings(Path(), prepare=[lambda: os.close(1)])),
        (("pytest", "suites/alpha", "--nodes=1x1"), Surroundings(Path(), {"TZ": "UTC+99"})),
    ],
    ids=["without docstrings", "stdout closed", "a time zone of four days"],
)
def test_what_a_campaign_found_stays_mended(
    words: tuple[str, ...], around: Surroundings, tree: Path, tmp_path: Path
) -> None:
    own = tmp_path / "tree"
    shutil.copytree(tree, own)
    around.folder = tmp_path
    code, output = run_in([sys.executable, "-m", *words], own, around)
    assert not Try(" ".join(words), words, code, output).finding


@pytest.mark.parametrize(
    ("code", "output"),
    [(1, "Traceback (most recent call last)"), (3, "INTERNALERROR> x"), (None, ""), (-11, ""), (120, "")],
)
def test_every_kind_of_finding_is_reported(code: int | None, output: str) -> None:
    assert Try("0", (), code, output).finding
    assert not Try("0", (), 1, "1 failed").finding
