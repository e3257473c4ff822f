"""Everything a vendor's folder can change is listed: each key of vendor.toml, also one that is added to its schema."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import vendor as vendors
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.plan.vendor_settings import IN_KEY, NAME, NOT_LISTED
from tests.helpers.trees import VENDOR_TOML, tree, write

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


def planned(root: Path, toml: str = TOML, runtime: str = "") -> Plan:
    catalog = tree(root)
    write(root, "vendors/acme/vendor.toml", toml)
    return make_plan(
        catalog,
        PlanRequest(
            Case.parse("toy:pytorch:X9:1:8:1"), vendor="acme", scale="reference", synthetic=True, runtime=runtime
        ),
    )


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
    settings = [name.removeprefix("setting ") for name in listed(planned(tmp_path)) if name.startswith("setting ")]
    every = set(keys(vendors.VendorToml))
    assert every >= NOT_LISTED.keys()
    for key in every - NOT_LISTED.keys():
        named = key.replace(f"framework.{NAME}", "framework.pytorch").replace(f"chips.{NAME}", "chips.X9")
        assert any(f"{name}.".startswith(f"{named}.") for name in settings), key
    assert all(any(f"{key}.".startswith(f"{name}.") for key in every) for name in IN_KEY)
    extended: Any = make_dataclass("Extended", [("turbo", str, "off")], bases=(vendors.VendorToml,), frozen=True)
    monkeypatch.setattr(vendors, "VendorToml", extended)
    assert listed(planned(tmp_path, 'turbo = "on"\n' + VENDOR_TOML))["setting turbo"] == "on"


def test_settings_have_their_place_in_plan_record_and_key(tmp_path: Path) -> None:
    plan = planned(tmp_path)
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
    before, after = planned(tmp_path), planned(tmp_path, TOML.replace(old, new))
    assert (before.fingerprint["key"] == after.fingerprint["key"]) is same
    assert before.fingerprint["deviations"] != after.fingerprint["deviations"]


def test_files_that_nothing_else_lists_are_listed(tmp_path: Path) -> None:
    planned(tmp_path)
    write(tmp_path, "vendors/acme/probe.py", "")
    write(tmp_path, "vendors/acme/images/pytorch/Dockerfile", "FROM acme")
    names = listed(planned(tmp_path, TOML.replace('pytorch = "acme/pytorch:1"', "")))
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
    plan = planned(tmp_path, TOML.replace('ACME_HOME = "/opt/acme"', variable))
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
    plan = planned(tmp_path, runtime=runtime)
    found = {addition.name for addition in plan.additions if addition.runs_code}
    assert found == {"module torch_acme", "variable ACME_HOME"} | bring
