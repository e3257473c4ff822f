"""A vendor's changes of a case: forbidden changes are an error before the run, allowed changes are reported.

tests/driver/pytorch/test_replayed.py tests what finds steps that compute something else.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from flagperf_driver.extern import NOT_REPLACEABLE
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.catalog import vendor as vendors
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan
from pytest_flagperf.plan.vendor_settings import IN_KEY, NAME, NOT_LISTED
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
    """Return the additions that are not in vendor.toml."""
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


# -- every key of vendor.toml, new keys of its schema too --------------------------------------------------------

TOML = """\
name = "Acme"
visible_devices = "ACME_VISIBLE"
runtime = "host"
scale = "small"
shapes = ["1x8"]
lease = "host"
min_efficiency = 0.9
nvml = true
[framework.pytorch]
device = "acme"
backend = "acl"
modules = ["torch_acme"]
[chips.X9]
devices_per_host = 8
memory_gib = 32
memory_gb_s = 900
source = "a sheet"
host_gb_s = 32
link_gb_s = 300
promised = { memory_gb_s = 0.8 }
peak_tflops = { bf16 = 80.5 }
names = ["X9"]
[container]
options = ["--env", "TOKEN=secret", "--device", "/dev/acme"]
[images]
pytorch = "acme/pytorch:1"
[environment]
ACME_HOME = "/opt/acme"
[uv]
UV_INDEX = "https://me:secret@acme.example/simple"
[[known_problem]]
case = "*"
text = "one link is slow"
"""
"""Every key with a value that is not its default."""


def with_toml(root: Path, toml: str = TOML, runtime: str = "") -> Plan:
    catalog = tree(root)
    write_vendor(root, toml=toml)
    return plan_of(catalog, scale="reference", runtime=runtime)


def listed(plan: Plan) -> dict[str, str]:
    return {addition.name: addition.value for addition in plan.additions}


def keys(record: type, at: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every key of a table and of the tables below it."""
    hints = get_type_hints(record)
    for field in fields(record):
        kind = hints[field.name]
        inner = get_args(kind)[1] if get_origin(kind) is Mapping else None
        if is_dataclass(kind):
            yield from keys(kind, (*at, field.name))  # type: ignore[arg-type]
        elif is_dataclass(inner):
            yield from keys(inner, (*at, field.name, NAME))  # type: ignore[arg-type]
        else:
            yield ".".join((*at, field.name))


def test_every_key_is_listed_or_has_a_reason_also_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [name.removeprefix("setting ") for name in listed(with_toml(tmp_path)) if name.startswith("setting ")]
    every = set(keys(vendors.VendorToml))
    assert every >= NOT_LISTED.keys()
    for key in every - NOT_LISTED.keys():
        named = key.replace(f"framework.{NAME}", "framework.pytorch").replace(f"chips.{NAME}", "chips.X9")
        assert any(f"{name}.".startswith(f"{named}.") for name in settings), key
    assert all(any(f"{key}.".startswith(f"{name}.") for key in every) for name in IN_KEY)
    extended: Any = make_dataclass("Extended", [("turbo", str, "off")], bases=(vendors.VendorToml,), frozen=True)
    monkeypatch.setattr(vendors, "VendorToml", extended)
    assert listed(with_toml(tmp_path, 'turbo = "on"\n' + VENDOR_TOML))["setting turbo"] == "on"


def test_settings_have_their_place_in_plan_record_and_key(tmp_path: Path) -> None:
    plan = with_toml(tmp_path)
    names = listed(plan)
    assert names["setting chips.X9.peak_tflops.bf16"] == "80.5"
    peaks = {"memory_gb_s": 900e9, "host_gb_s": 32e9, "link_gb_s": 300e9}
    assert plan.peaks == {"peak_tflops.bf16": 80.5e12, **peaks}
    assert names["setting uv.UV_INDEX"] == "https://***@acme.example/simple"
    assert "secret" not in str(names)
    assert names["module torch_acme"] == "imported by each rank"
    assert names["variable ACME_HOME"] == "set"
    assert names["known problem 1"] == "one link is slow"
    (index,) = [one for one in plan.additions if one.name == "setting uv.UV_INDEX"]
    assert index.where == "vendors/acme/vendor.toml:30"
    assert plan.fingerprint["deviations"]["setting nvml"] == ["true", "false"]
    assert [one["name"] for one in plan.to_json()["additions"]] == list(names)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('backend = "acl"', 'backend = "nccl"', False),
        ("acme.example/simple", "other.example/simple", False),
        ("torch_acme", "torch_other", False),
        ("/dev/acme", "/dev/other", False),
        ("80.5", "90", True),
        ('["X9"]', '["X9 PCIe"]', True),
    ],
)
def test_what_changes_the_training_changes_the_key(tmp_path: Path, old: str, new: str, same: bool) -> None:
    before, after = with_toml(tmp_path), with_toml(tmp_path, TOML.replace(old, new))
    assert (before.fingerprint["key"] == after.fingerprint["key"]) is same
    assert before.fingerprint["deviations"] != after.fingerprint["deviations"]


def test_files_that_nothing_else_lists_are_listed(tmp_path: Path) -> None:
    with_toml(tmp_path)
    write(tmp_path, "vendors/acme/probe.py", "")
    write(tmp_path, "vendors/acme/images/pytorch/Dockerfile", "FROM acme")
    names = listed(with_toml(tmp_path, TOML.replace('pytorch = "acme/pytorch:1"', "")))
    assert names["file probe.py"] == "reads the devices during the round"
    assert names["file images/pytorch/Dockerfile"] == "builds the image"


@pytest.mark.parametrize(
    ("variable", "runs_code"),
    [
        ('ACME_ORDER = "PCI_BUS_ID"', False),
        ('ACME_MEMORY = "expandable_segments:True,max_split:128"', False),
        ('ACME_MEMORY = "plugin:acme"', True),
        ('ACME_MEMORY = "growth:True,/opt/acme"', True),
        ('ACME_HOME = "/opt/acme"', True),
        ('LD_PRELOAD = "ACME"', True),
        ('ACME_PLUGIN = "acme.plugin"', True),
    ],
)
def test_only_a_plain_value_of_a_variable_brings_no_code(tmp_path: Path, variable: str, runs_code: bool) -> None:
    plan = with_toml(tmp_path, TOML.replace('ACME_HOME = "/opt/acme"', variable))
    (found,) = (addition for addition in plan.additions if addition.name.startswith("variable"))
    assert found.runs_code is runs_code


@pytest.mark.parametrize(
    ("runtime", "bring"),
    [
        ("host", {"setting uv.UV_INDEX"}),
        ("docker", {"setting container.options", "setting images.pytorch"}),
    ],
)
def test_packages_and_containers_bring_code_and_others_do_not(tmp_path: Path, runtime: str, bring: set[str]) -> None:
    plan = with_toml(tmp_path, runtime=runtime)
    found = {addition.name for addition in plan.additions if addition.runs_code}
    assert found == {"module torch_acme", "variable ACME_HOME"} | bring
