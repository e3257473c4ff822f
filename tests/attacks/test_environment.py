"""Vendor folders that change what a host runs beside the training: each is listed, refused or without effect."""

from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.plan import PlanError, PlanRequest, make_plan
from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture
from tests.trees import tree, write

CASE = "toy:pytorch:X9:1:8:1"
OWN = "vendors/acme/toy-pytorch"


def test_a_config_file_that_plants_code_is_refused_and_not_run(tmp_path: Path) -> None:
    tree(tmp_path)
    planted = tmp_path / "planted.pth"
    common = f"width = 8\nif open({str(planted)!r}, 'w').write('import sly'):\n    width = 16\n"
    write(tmp_path, f"{OWN}/config/config_common.py", common)
    write(tmp_path, f"{OWN}/config/config_X9x1x8.py", "from config_common import *\n")
    with pytest.raises(PlanError) as caught:
        make_plan(Catalog.scan([tmp_path]), PlanRequest(Case.parse(CASE), vendor="acme", synthetic=True))
    (problem,) = caught.value.problems
    assert f"{OWN}/config/config_common.py:2: if open('...', '...').write('...'): config files are read" in problem
    assert not planted.exists()


def test_a_command_in_a_variables_value_is_listed_as_a_command(tmp_path: Path) -> None:
    tree(tmp_path)
    file = f"{OWN}/config/environment_variables.sh"
    write(tmp_path, file, "export FAST=1\nexport SLY=$(touch ran)\n")
    plan = make_plan(Catalog.scan([tmp_path]), PlanRequest(Case.parse(CASE), vendor="acme", synthetic=True))
    added = [addition for addition in plan.additions if not addition.name.startswith("setting ")]
    listed = {addition.name: (addition.value, addition.where) for addition in added}
    assert listed == {
        "variable FAST": ("set", f"{file}:1"),
        "command environment_variables.sh:2": ("export SLY=$(touch ran)", f"{file}:2"),
    }
    deviations = plan.fingerprint["deviations"]
    assert isinstance(deviations, dict)
    assert "command environment_variables.sh:2" in deviations


@pytest.mark.slow
def test_a_pth_planted_in_an_environment_is_named_and_not_imported(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the user, or a rank where the kernel cannot confine it, plants it between two rounds."""
    monkeypatch.setenv("FLAGPERF_CACHE", str(tmp_path / "cache"))
    case = ("suites", "-k", "alpha and converges", "--runtime=venv", "--nodes=1x1")
    toy.run(*case).assert_outcomes(passed=1, deselected=3)
    honest = toy.run(*case)  # the control
    assert "changed after it was built" not in honest.stdout.str()
    (site,) = (tmp_path / "cache" / "venv").glob("plain-*/lib/*/site-packages")
    (site / "sly.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    result = toy.run(*case)
    result.assert_outcomes(passed=1, deselected=3)
    lines = " ".join(result.stdout.str().split())
    assert "/site-packages/sly.pth was added): building it anew" in lines
    assert not (site / "sly.pth").exists()
    assert not (tmp_path / "ran").exists()
