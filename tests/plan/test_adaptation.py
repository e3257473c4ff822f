"""A vendor's changes of a case: forbidden changes are an error before the run, allowed changes are reported.

tests/driver/pytorch/test_replayed.py tests what finds steps that compute something else.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.extern import NOT_REPLACEABLE
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.comparing.comparable import fingerprint_differences, notes
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.stored import files
from pytest_flagperf.stored.plan import Addition
from pytest_flagperf.stored.round_dir import RoundDir
from pytest_flagperf_page import page as run_page
from tests.helpers.results_help import edit_json, recorded, replay_dir
from tests.helpers.trees import VENDOR_TOML, tree, write, write_vendor

CASE = "toy:pytorch:X9:1:8:1"
OWN = "vendors/acme/toy-pytorch"
ADAPTER = f"{OWN}/extern/trainer_adapter.py"
SUITES = "torch==2.1\nnumpy==2.0\n"


def plan_of(catalog: Catalog, **more: Any) -> Plan:
    return make_plan(catalog, PlanRequest(Case.parse(CASE), vendor="acme", synthetic=True, **more))


def planned(root: Path, config: str = "") -> Plan:
    return plan_of(tree(root, config))


def _beside(plan: Plan) -> list[Addition]:
    """Return the additions that are not in vendor.toml; tests/plan/test_vendor_settings.py tests its settings."""
    return [addition for addition in plan.additions if not addition.name.startswith("setting ")]


def refusal(root: Path, config: str = "", adapter: str = "") -> str:
    write(root, ADAPTER, adapter)
    with pytest.raises(Problems) as caught:
        planned(root, config)
    (problem,) = caught.value.problems
    prefix = f"case {CASE}: "
    assert problem.startswith(prefix)
    return problem.removeprefix(prefix)


@pytest.mark.parametrize(("step", "reason"), NOT_REPLACEABLE.items())
def test_a_vendor_cannot_replace_steps_of_data_and_measurement(tmp_path: Path, step: str, reason: str) -> None:
    message = refusal(tmp_path, adapter=f"\n\ndef {step}(ctx): ...\n")
    assert message.startswith(
        f"{ADAPTER}:3: '{step}' cannot be replaced by a vendor: {reason}; allowed: create_model, "
    )


def test_an_unknown_step_and_an_unknown_hook_are_reported_with_all_other_problems(tmp_path: Path) -> None:
    write(tmp_path, ADAPTER, "raise SystemExit\ndef convert_modle(ctx, model): ...\n")
    with pytest.raises(Problems) as caught:
        planned(tmp_path, "frozen = 4")
    step, key = caught.value.problems
    assert f"{ADAPTER}:2: 'convert_modle' is not a step that can be replaced; did you mean 'convert_model'" in step
    assert "frozen = 4" in key
    write(tmp_path, "vendors/acme/device.py", "def synchronise(device): ...\n")
    message = refusal(tmp_path)
    assert message.startswith("vendors/acme/device.py:1: 'synchronise' is not a device hook that can be replaced")


def adapt(root: Path) -> Catalog:
    """Write a vendor with one addition of each kind."""
    tree(root)
    write_vendor(root, toml=VENDOR_TOML + '[environment]\nACME_HOME = "/opt/acme"\n')
    write(root, "vendors/acme/device.py", "def synchronize(device): ...\n")
    write(root, ADAPTER, "raise SystemExit\n\ndef create_optimizer(ctx, model): ...\n")
    write(root, f"{OWN}/config/environment_variables.sh", "# fast\nexport ACME_FAST=1\nsource /opt/acme/env\n")
    write(root, "suites/toy/pytorch/requirements.txt", SUITES)
    write(root, f"{OWN}/config/requirements.txt", "torch==2.4  # theirs\nnumpy==2.0\nAcme_Kernels>=1\n")
    write(root, f"{OWN}/csrc/setup.py", "raise SystemExit\n")
    return Catalog.scan([root])


ADDITIONS = {
    "step create_optimizer": ["acme's own", "the suite's own"],
    "hook synchronize": ["acme's own", "the framework's own"],
    "variable ACME_HOME": ["set", "none"],
    "variable ACME_FAST": ["set", "none"],
    "command environment_variables.sh:3": ["source /opt/acme/env", "none"],
    "package torch": ["==2.4", "==2.1"],
    "package acme-kernels": [">=1", "none"],
    "extension csrc": ["as installed in the hosts' Python", "none"],
}


def test_additions_are_listed_without_running_a_vendors_code(tmp_path: Path) -> None:
    plan = plan_of(adapt(tmp_path))
    assert {addition.name: [addition.value, addition.reference] for addition in _beside(plan)} == ADDITIONS
    lines = {addition.name: addition.line for addition in plan.additions}
    assert (lines["step create_optimizer"], lines["variable ACME_FAST"], lines["package acme-kernels"]) == (3, 2, 3)
    docker = plan_of(adapt(tmp_path), runtime="docker")
    assert _beside(docker)[-1].value == "built into the image"
    write(tmp_path, "vendors/acme/device.py", "import time\n")
    module = next(one for one in planned(tmp_path).additions if one.name.startswith("module "))
    assert (module.name, module.value) == ("module device.py", "imported by each rank"), "without a hook to list"


def test_packages_are_listed_as_pip_reads_them_without_credentials(tmp_path: Path) -> None:
    write(tmp_path, "suites/toy/pytorch/requirements.txt", SUITES)
    options = "--extra-index-url https://me:secret@acme.example/simple\n-r more.txt\n"
    write(tmp_path, f"{OWN}/config/requirements.txt", f"{options}numpy \\\n  ==2.0\ntorch[acme]==2.1\n")
    write(tmp_path, f"{OWN}/config/more.txt", "\nkernels @ https://me:secret@acme.example/kernels.whl\n")
    packages = {addition.name: (addition.value, addition.where) for addition in _beside(planned(tmp_path))}
    assert packages == {
        "package --extra-index-url https://***@acme.example/simple": ("any", f"{OWN}/config/requirements.txt:1"),
        "package kernels": ("@ https://***@acme.example/kernels.whl", f"{OWN}/config/more.txt:2"),
        "package torch": ("[acme]==2.1", f"{OWN}/config/requirements.txt:5"),
    }
    write(tmp_path, f"{OWN}/config/more.txt", "-r absent.txt\n")
    with pytest.raises(Problems, match=r"absent\.txt: cannot be read: No such file"):
        planned(tmp_path)
    (tmp_path / OWN / "config" / "more.txt").write_bytes(b"\xff")
    with pytest.raises(Problems, match=r"more\.txt: not UTF-8"):
        planned(tmp_path)


def test_the_plan_prints_additions(tmp_path: Path) -> None:
    text = describe(plan_of(adapt(tmp_path)))
    assert f"\n  additions step create_optimizer: acme's own, {ADAPTER}:3 (default: the suite's own)\n" in text
    assert f"\n            package torch: ==2.4, {OWN}/config/requirements.txt:1 (default: ==2.1)\n" in text
    setting = "vendors/acme/vendor.toml:6 (default: none)"
    assert f"\n  additions setting framework.pytorch.device: acme, {setting}\n" in describe(planned(tmp_path / "plain"))


def test_additions_are_deviations_but_do_not_make_rounds_incomparable(tmp_path: Path) -> None:
    """The hashes of the vendor's code, environment and requirements make rounds incomparable."""
    write(tmp_path / "plain", "suites/toy/pytorch/requirements.txt", SUITES)
    plain = planned(tmp_path / "plain").fingerprint
    adapted = plan_of(adapt(tmp_path)).fingerprint
    assert isinstance(adapted["deviations"], dict)
    assert adapted["deviations"].items() >= ADDITIONS.items()
    code, packages = fingerprint_differences(plain, adapted)  # only one of them has an environment
    assert code.startswith("vendor_code: step create_optimizer the suite's own -> acme's own, hook synchronize")
    assert packages == "requirements: package torch ==2.1 -> ==2.4, package acme-kernels none -> >=1"
    old, new = (
        replace(recorded("converged_1x1"), fingerprint={**plain, "deviations": deviations})
        for deviations in ({}, ADDITIONS)
    )
    assert fingerprint_differences(old.fingerprint, new.fingerprint) == []
    assert "step create_optimizer the suite's own -> acme's own" in notes(old, new)
    elsewhere = replace(new, fingerprint={**new.fingerprint, "config": "another", "vendor_code": "another"})
    other_notes = notes(old, elsewhere)
    assert "variable ACME_FAST none -> set" in other_notes
    assert not any(note.startswith("step") for note in other_notes), "already reported as a difference"


def test_the_page_lists_additions_with_the_config(tmp_path: Path) -> None:
    plan = plan_of(adapt(tmp_path))
    files.write(tmp_path / "plan.json", {**plan.to_json(), "round": 1, "seed": 42, "hosts": []})
    page = run_page._config(RoundDir(tmp_path).read_plan())
    assert f"Vendor additions: {len(plan.additions)} beside the config" in page
    for text in (f"{ADAPTER}:3", "min_efficiency", *ADDITIONS):
        assert text in page


def test_a_variable_that_the_round_sets_has_no_effect(tmp_path: Path) -> None:
    catalog = adapt(tmp_path)
    write(tmp_path, f"{OWN}/config/environment_variables.sh", "\ufeffexport OMP_NUM_THREADS=4\n")
    plan = plan_of(catalog)
    additions = {addition.name: addition.value for addition in plan.additions}
    assert additions["variable OMP_NUM_THREADS"] == "no effect, the round sets it for each rank"


def test_deviations_found_by_a_rank_are_listed(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1"))
    log = next(directory.glob("*/rank0.out.log"))
    text = log.read_text(encoding="utf-8")
    assert '"replaced": []' in text
    replaced = '"replaced": ["create_optimizer"], "deviations": {"optimizer class": ["Ours", "AdamW"]}'
    log.write_text(text.replace('"replaced": []', replaced), encoding="utf-8")
    edit_json(directory / "plan.json", fingerprint={"key": "k", "deviations": {"width": [1, 2]}})
    outcome = measure(directory)
    assert outcome.fingerprint["deviations"] == {"width": [1, 2], "optimizer class": ["Ours", "AdamW"]}
    assert outcome.environment["replaced steps"] == "create_optimizer"
