"""The plan of a case: its contents, its description and its fingerprint."""

import io
import json
import re
import shutil
import tarfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flagperf_driver
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.engines.agents.environments import Environments
from pytest_flagperf.kinds import MeasurementKind
from pytest_flagperf.plan import Plan, PlanError, PlanRequest, describe, make_plan, one_card_plan
from pytest_flagperf.plan.checkout import checkout
from pytest_flagperf.plan.fingerprint import code_hash
from pytest_flagperf.plan.make import driver_code
from pytest_flagperf.plan.ranks import expected_placement
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import read_settings
from tests.helpers.trees import (
    PLAIN_MEASUREMENT_TOML,
    SUITE_TOML,
    VENDOR_TOML,
    tree,
    write,
    write_config,
    write_suite,
    write_vendor,
)
from tests.helpers.walk import git

HOSTS: Any = [SimpleNamespace(name=f"h{number}", address=f"10.0.0.{number}") for number in (1, 2, 3)]


def planned(catalog: Catalog, case: str = "toy:pytorch:X9:1:8:1", **more: Any) -> Plan:
    options: dict[str, Any] = {"vendor": "acme", "synthetic": True, **more}
    return make_plan(catalog, PlanRequest(Case.parse(case), **options))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    write_config(tmp_path, "train_batch_size = 16\n", "config_X9x2x8.py")
    write_config(tmp_path, "", "config_X9x1x1.py")
    return tree(tmp_path, "ratio = 0.25\n")


def test_a_plan_contains_the_values_of_suite_config_and_vendor(tmp_path: Path, catalog: Catalog) -> None:
    plan = planned(catalog)
    assert (plan.metric.value, plan.metric.name, plan.sample_unit) == (0.75, "top1", "images")
    assert (plan.device, plan.backend, plan.visible_devices) == ("acme", "acl", "ACME_VISIBLE")
    assert (plan.flops_per_sample, plan.peak_tflops, plan.precision) == (24e9, 80.5, "bf16")
    assert (plan.min_efficiency, plan.scaling, plan.runtime) == (0.85, "weak", "venv")
    assert plan.config["ratio"] == 0.25
    assert plan.extern is None
    write_vendor(tmp_path, toml='scale = "small"\nruntime = "host"\n' + VENDOR_TOML)
    plan = planned(Catalog.scan([tmp_path]), synthetic=False)
    assert (plan.scale, plan.runtime, plan.metric.value, plan.throughput_only) == ("small", "host", 0.9, False)
    assert planned(catalog, scale="reference", runtime="docker").runtime == "docker"


def test_a_variant_sets_values_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    catalog = tree(tmp_path)

    def of(variant: str, **more: Any) -> Plan:
        return planned(catalog, f"toy:pytorch:X9:1:8:1{variant}", **more)

    plan, base = of(":learning_rate-0.5"), of("")
    value = plan.values["learning_rate"]
    assert (value.value, value.where, value.layer) == (0.5, "--each learning_rate=0.5", "setting")
    assert "learning_rate" in {deviation.key for deviation in plan.deviations}
    assert plan.fingerprint["variant"] == "learning_rate-0.5"
    assert "variant" not in base.fingerprint, "the fingerprints of cases without a variant stay as they were"
    keys = {one.fingerprint["key"] for one in (plan, base, of("", settings=["learning_rate=0.5"]))}
    assert len(keys) == 2, "of the keys, only that with a variant differs: the learning rate alone does not count"
    alone = one_card_plan(plan)
    assert (str(alone.case), alone.fingerprint["key"]) == (
        "toy:pytorch:X9:1:1:1:learning_rate-0.5",
        plan.fingerprint["one_card_key"],
    )
    assert plan.fingerprint["one_card_key"] != base.fingerprint["one_card_key"]


def test_the_utilization_is_of_the_peak_of_what_the_products_are_computed_in(tmp_path: Path) -> None:
    tree(tmp_path)
    write_vendor(tmp_path, toml=VENDOR_TOML.replace("bf16 = 80.5", "bf16 = 80.5, fp8 = 161"))
    base = tmp_path / "suites/toy/pytorch/config/_base.py"
    allowed = 'precision: Literal["fp32", "bf16", "float8", "nvfp4"] = "fp32"'
    base.write_text(f"from typing import Literal\n{base.read_text()}{allowed}\n")
    catalog = Catalog.scan([tmp_path])

    def computed(variant: str, *settings: str) -> tuple[Any, ...]:
        plan = planned(catalog, f"toy:pytorch:X9:1:8:1{variant}", settings=settings)
        return plan.config["precision"], plan.precision, plan.peak_tflops

    assert computed(":precision-float8") == ("float8", "fp8", 161)
    assert computed("", "float8=True") == ("float8", "fp8", 161)
    assert computed(":precision-bf16") == ("bf16", "bf16", 80.5)
    assert computed(":precision-fp32") == ("fp32", "fp32", 10)
    with pytest.raises(PlanError, match=r"precision=nvfp4: vendor\.toml has no peak_tflops with nvfp4 for X9"):
        computed(":precision-nvfp4")


def test_the_first_hosts_are_used_and_missing_hosts_are_named(catalog: Catalog) -> None:
    plan = planned(catalog, "toy:pytorch:X9:2:8:1")
    assert [(host.name, host.devices) for host in expected_placement(plan, HOSTS).hosts] == [
        ("h1", tuple(range(8))),
        ("h2", tuple(range(8))),
    ]
    assert [host.name for host in expected_placement(plan, HOSTS[:1]).hosts] == ["h1", "host1"]


def test_a_vendors_own_device_is_named_and_part_of_the_fingerprint(tmp_path: Path, catalog: Catalog) -> None:
    before = planned(catalog)
    assert (before.modules, before.device_module) == ((), None)
    assert before.case_json(1, "/code")["device_module"] is None
    write_vendor(tmp_path, toml=VENDOR_TOML.replace('"acl"\n', '"acl"\nmodules = ["torch_acme", "acme.collectives"]\n'))
    write(tmp_path, "vendors/acme/device.py", "def synchronize(device): pass\n")
    write(tmp_path, "vendors/acme/toy-pytorch/extern/trainer_adapter.py", "")
    plan = planned(Catalog.scan([tmp_path]))
    stored = plan.case_json(1, "/code")
    assert stored["extern"] == "/code/vendors/acme/toy-pytorch/extern"
    assert stored["modules"] == ["torch_acme", "acme.collectives"]
    assert stored["device_module"] == "/code/vendors/acme/device.py"
    assert plan.to_json()["device_module"] == "vendors/acme/device.py"
    assert plan.fingerprint["vendor_code"] != before.fingerprint["vendor_code"]


def test_a_framework_without_hooks_gets_no_device_of_the_vendor(tmp_path: Path) -> None:
    tree(tmp_path)
    write_suite(tmp_path, framework="paddle")
    write_config(tmp_path, "", "config_X9x1x1.py", "toy-paddle")
    table = '[framework.paddle]\ndevice = "CPU"\nbackend = "any"\n'
    write_vendor(tmp_path, toml=VENDOR_TOML.replace("[chips", f"{table}[chips", 1))

    def plan() -> Plan:
        return planned(Catalog.scan([tmp_path]), "toy:paddle:X9:1:1:1")

    before = plan()
    write(tmp_path, "vendors/acme/device.py", "def synchronize(device): pass\n")
    assert (plan().device_module, plan().additions) == (None, before.additions)
    assert plan().fingerprint["vendor_code"] == before.fingerprint["vendor_code"]


def test_a_vendors_environment_variables_change_the_fingerprint(tmp_path: Path, catalog: Catalog) -> None:
    plain = planned(catalog).fingerprint
    assert "environment" not in plain
    file = write(tmp_path, "vendors/acme/toy-pytorch/config/environment_variables.sh", "export FAST=1\n")
    by_file = planned(catalog).fingerprint
    write_vendor(tmp_path, toml=VENDOR_TOML + '[environment]\nSLOW = "0"\n')
    by_both = planned(Catalog.scan([tmp_path])).fingerprint
    file.unlink()
    by_table = planned(Catalog.scan([tmp_path])).fingerprint
    assert len({fingerprint["key"] for fingerprint in (plain, by_file, by_both, by_table)}) == 4
    assert {name for name in plain if by_table[name] != plain[name]} == {"key", "one_card_key", "deviations"}


def test_an_endless_training_and_a_wrong_schedule_are_refused_before_anything_starts(catalog: Catalog) -> None:
    settings = ("stop_at_target=False",)
    with pytest.raises(Problems, match="needs a limit; set one of max_steps, max_epochs, max_samples"):
        planned(catalog, settings=settings, check_data=False, data_dir="/data")
    limited = planned(
        catalog, settings=(*settings, "max_steps=9"), check_data=False, data_dir="/data", synthetic=False
    )  # the control
    assert "converges to its target and trains on to its limit" in describe(limited)
    with pytest.raises(Problems, match=r"lr_floor is 2; expected a share of learning_rate, 0 to 1"):
        planned(catalog, settings=("lr_floor=2",), check_data=False, data_dir="/data")
    planned(catalog, settings=("lr_floor=0.5",), check_data=False, data_dir="/data")  # the control


def test_a_ranks_file_is_complete_and_has_the_rounds_seed(catalog: Catalog) -> None:
    body = planned(catalog, synthetic=False, check_data=False, data_dir="/data").case_json(3, "/code")
    assert json.loads(json.dumps(body)) == body
    assert (body["schema"], body["case"], body["round"], body["seed"], body["config"]["seed"]) == (
        1, "toy:pytorch:X9:1:8:1", 3, 44, 44,
    )  # fmt: skip
    top1 = {"name": "top1", "direction": "higher", "unit": "fraction", "range": [0.0, 1.0], "loss_range": None}
    top1["original_name"] = ""
    assert body["metric"] == {**top1, "target": 0.75, "also": {}}
    assert (body["data_dir"], body["config"]["data_dir"], body["framework"]) == ("/data", "/data", "pytorch")
    assert {"vendor", "hardware", "nnodes", "nproc", "synthetic", "throughput_only", "device"} <= body.keys()


def test_the_stored_plan_has_origins_and_deviations(catalog: Catalog) -> None:
    body = planned(catalog).to_json()
    assert json.loads(json.dumps(body)) == body
    assert body["values"]["ratio"] == {
        "value": 0.25,
        "file": "vendors/acme/toy-pytorch/config/config_X9x1x8.py",
        "line": 1,
        "layer": "vendor",
    }
    assert {one["key"] for one in body["deviations"]} == {"ratio", "throughput_only"}
    assert [(one["path"], one["kind"], one["files"]) for one in body["manifest"]] == [("train", "folder", 3)]
    assert "config" not in body  # each value is stored once
    assert "hosts" not in body  # the round adds its hosts


def test_one_card_synthetic_data_and_an_option_make_it_throughput_only(catalog: Catalog) -> None:
    def value(case: str, **more: Any) -> tuple[object, str]:
        value = planned(catalog, case, synthetic=False, check_data=False, **more).values["throughput_only"]
        return value.value, value.where

    one = "toy:pytorch:X9:1:1:1"
    assert value(one) == (True, "default of 1x1 at the reference scale")
    assert value(one, throughput_only=False) == (False, "--no-throughput-only")
    assert value(one, settings=["throughput_only=False"])[0] is False
    assert value(one, scale="small")[0] is False
    assert value("toy:pytorch:X9:2:8:1")[0] is False
    assert planned(catalog).throughput_only
    plan = planned(catalog, synthetic=False, throughput_only=True, check_data=False)
    assert plan.throughput_only
    assert plan.values["throughput_only"].where == "--throughput-only"
    assert not planned(catalog, synthetic=False, check_data=False).throughput_only


def test_a_kind_may_use_the_devices_of_a_framework_and_generate_what_it_needs(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_suite(tmp_path, framework="engine", toml=PLAIN_MEASUREMENT_TOML)
    write(tmp_path, "suites/toy/engine/config/mutable_params.py", "mutable_params = []\n")
    write(tmp_path, "suites/toy/engine/config/_base.py", "throughput_only = False\n")
    catalog = Catalog.scan([tmp_path])
    with pytest.raises(Problems, match="acme has no framework 'engine'"):
        planned(catalog, "toy:engine:X9:1:1:1", synthetic=True)
    monkeypatch.setattr(MeasurementKind, "framework", "pytorch")
    plan = planned(catalog, "toy:engine:X9:1:1:1", synthetic=True)
    assert (plan.device, plan.backend, plan.synthetic, plan.throughput_only) == ("acme", "acl", False, False)
    assert plan.program == "suites/toy/engine/run_measurement.py"
    monkeypatch.setattr(MeasurementKind, "generates", True)
    plan = planned(catalog, "toy:engine:X9:1:1:1", synthetic=True)
    assert (plan.synthetic, plan.throughput_only) == (True, True)


def key(plan: Plan) -> object:
    return plan.fingerprint["key"]


def test_the_same_case_has_the_same_key_and_changed_code_another(tmp_path: Path, catalog: Catalog) -> None:
    plan = planned(catalog)
    alike = planned(catalog, "toy:pytorch:X9:1:8:5", settings=["seed=1", "max_steps=3"])
    assert key(plan) == key(alike)
    program = write(tmp_path, "suites/toy/pytorch/run_pretraining.py", "pass\n")
    before = key(planned(catalog))
    program.write_text("pass  # another\n")
    assert key(planned(catalog)) != before


@pytest.mark.parametrize(
    "more",
    [
        {"settings": ["precision=fp32"]},
        {"settings": ["train_batch_size=8"]},
        {"settings": ["compile=True"]},
        {"settings": ["width=1"]},
        {"runtime": "host"},
        {"scale": "small"},
        {"synthetic": False, "check_data": False},
        {"case": "toy:pytorch_2.0:X9:1:8:1"},
        {"case": "toy:pytorch:X9:1:1:1"},
    ],
)
def test_compared_values_change_the_key(catalog: Catalog, more: dict[str, Any]) -> None:
    assert key(planned(catalog)) != key(planned(catalog, **more))


def test_a_plan_contains_the_reference_of_its_scale_and_no_key_depends_on_it(tmp_path: Path, catalog: Catalog) -> None:
    before, parity = planned(catalog), ["parity_samples=1000"]
    assert before.to_json()["reference"] is None
    with pytest.raises(Problems, match=r"parity_samples needs the suite's reference, suites/toy/.*reference\.json"):
        planned(catalog, settings=parity)
    file = write(tmp_path, "suites/toy/pytorch/reference/reference.json", '{"schema": 1}')
    plan = planned(catalog)
    assert plan.to_json()["reference"] == {"schema": 1}
    assert key(plan) == key(before) == key(planned(catalog, settings=parity))
    real = planned(catalog, synthetic=False, check_data=False, settings=parity)
    assert "parity: 1,000 samples, judged by the reference's loss curve" in describe(real)
    for wrong in ("[", "[]"):
        file.write_text(wrong)
        with pytest.raises(Problems, match=r"tools\.calibrate writes this file"):
            planned(catalog)


def test_one_card_of_a_weakly_scaled_case_has_its_own_batch_as_a_1x1_case_of_the_same_work(catalog: Catalog) -> None:
    plan = planned(catalog, "toy:pytorch:X9:2:8:1")
    alone = one_card_plan(plan)
    assert (str(alone.case), alone.config["train_batch_size"]) == ("toy:pytorch:X9:1:1:1", 16)
    assert key(alone) == plan.fingerprint["one_card_key"] == alone.fingerprint["one_card_key"]
    assert alone.case_json(1, "/code")["config"]["throughput_only"] is True
    own = planned(catalog, "toy:pytorch:X9:1:1:1", settings=["ratio=0.25"])
    eight, sixteen = planned(catalog), planned(catalog, "toy:pytorch:X9:2:8:1")
    assert key(own) == eight.fingerprint["one_card_key"] == key(one_card_plan(eight))
    assert key(own) != sixteen.fingerprint["one_card_key"]


def test_the_key_has_the_sizes_of_parallel_and_one_card_has_none(tmp_path: Path) -> None:
    tree(tmp_path)
    write_suite(tmp_path, toml=SUITE_TOML + '[parallel]\nexpert = ["width"]\ntensor = ["width"]\n')
    catalog = Catalog.scan([tmp_path])
    ddp, fsdp, same, pairs, strong = (
        planned(catalog, settings=settings)
        for settings in (
            [], ["parallel=fsdp"], ["parallel=shard=8"], ["parallel=shard=-1,tensor=2"],
            ["parallel=tensor=2", "scaling=strong"],
        )
    )  # fmt: skip
    assert key(fsdp) == key(same)
    assert len({key(plan) for plan in (ddp, fsdp, pairs)}) == 3
    for plan in (fsdp, pairs, strong):
        alone = one_card_plan(plan)
        assert alone.config["parallel"] == "ddp"
        assert key(alone) == plan.fingerprint["one_card_key"] == alone.fingerprint["one_card_key"]
    assert key(one_card_plan(pairs)) == key(one_card_plan(ddp))
    batch = one_card_plan(strong).values["train_batch_size"]
    assert (pairs.data_ranks, batch.value, batch.where) == (4, 4 * 32, "one card of toy:pytorch:X9:1:8:1")
    mixed = describe(planned(catalog, settings=["parallel=shard=2,tensor=2"]))
    assert "  parallel  replicate=2,shard=2,tensor=2: 2 copies of the model, 4 cards each; 4 shares of" in mixed
    assert "              ranks 6 to 7: copy 2, part 2 of 2, divided between these ranks; samples 4 of 4" in mixed
    experts = describe(planned(catalog, settings=["parallel=shard=2,expert=4"]))
    assert "  parallel  shard=2,expert=4: 1 copy of the model, 8 cards each; 8 shares of the samples" in experts
    assert "              rank 6: part 7 of 8, part 3 of 4 of the experts; samples 7 of 8" in experts
    assert "  parallel  ddp: 8 copies of the model, 1 card each; 8 shares of the samples\n  speed-up" in describe(ddp)


def test_the_description_names_everything_that_runs(tmp_path: Path) -> None:
    write_config(tmp_path, "ratio = 0.25\n", "config_X9x2x8.py")
    text = describe(planned(tree(tmp_path), "toy:pytorch:X9:2:8:1"), hosts=HOSTS)
    assert "memory " not in text.partition("config (")[0], "the suite has no program that estimates it"
    for pattern in (
        r"^toy:pytorch:X9:2:8:1$",
        r"labels +throughput only, synthetic data$",
        r"scale +reference: top1 >= 0.75 \(fraction\)$",
        r"shape +2x8: 2 hosts, 16 cards in total$",
        r"speed-up +weak scaling, at least 0.85 per card$",
        r"runtime +venv$",
        r"folder train, 3 files$",
        r"24000000000.* FLOPs per sample|2.4e\+10 FLOPs per sample, 80.5 TFLOP/s dense at bf16 \(a sheet\)$",
        r"^ +1 +h2 +10\.0\.0\.2 +devices 0,1,2,3,4,5,6,7$",
        r"^  \* ratio +0\.25 +vendor +vendors/acme/toy-pytorch/config/config_X9x2x8.py:1$",
        r"^ +the suite's: 0\.5$",
        r"^    momentum +0\.9 +defaults flagperf_driver/defaults.py:\d+$",
        r"^ +ACME_VISIBLE=0,1,2,3,4,5,6,7$",
        r"^ +WORLD_SIZE=16$",
        r"^ +rank 15: RANK=15 LOCAL_RANK=7 \{python\} -u \{code\}/suites/toy/pytorch/run_pretraining.py$",
    ):
        assert re.search(pattern, text, re.MULTILINE), pattern
    assert max(map(len, text.splitlines())) <= 120


def test_the_description_names_unknown_values_and_long_ones_in_full(tmp_path: Path) -> None:
    catalog = tree(tmp_path, 'precision = "fp16"\nmin_efficiency = 0.9\n')
    text = describe(planned(catalog, synthetic=False, check_data=False))
    assert "missing: pass --data-dir" in text
    assert "weak scaling, at least 0.9 per card" in text
    assert "none: no peak of X9 at fp16 declared" in text
    assert "converges to its target" in text
    small = describe(planned(catalog, scale="small", synthetic=False))
    assert "included in the suite" in small
    text = describe(planned(tree(tmp_path), settings=[f"note={'word ' * 60}", "width=1"]))
    (words,) = re.findall(r"in full: '((?:word\s+)*)'", text)
    assert words.split() == ["word"] * 60
    assert max(len(line) for line in text.splitlines() if "--set" not in line) <= 120


@pytest.mark.parametrize(
    ("asked", "host", "monitors"),
    [
        ("", "8 free devices", "the host"),
        ("nvml = true", "8 free devices called X9 (Acme X-?9)", "the host, its devices by NVML"),
        ('lease = "host"', "the whole host", "the host"),
    ],
    ids=["no monitor", "NVML", "the whole host"],
)
def test_the_description_lists_the_requirements_of_a_host(tmp_path: Path, asked: str, host: str, monitors: str) -> None:
    toml = f"{asked}\n" + VENDOR_TOML.replace("[chips.X9]", '[chips.X9]\nnames = ["Acme X-?9"]', 1)
    tree(tmp_path)
    write_vendor(tmp_path, toml=toml)
    catalog = Catalog.scan([tmp_path])
    vendor = catalog.vendor("acme")
    text = describe(planned(catalog), vendor, vendor.toml.lease)
    assert re.search(rf"^  each host Python >= 3.8, {re.escape(host)}$", text, re.MULTILINE)
    assert re.search(rf"^  monitors  {monitors}$", text, re.MULTILINE)


def test_a_setting_from_a_file_names_the_file(catalog: Catalog) -> None:
    plan = planned(catalog, settings=["width=1"], settings_source="flagperf.toml")
    assert plan.values["width"].where == "flagperf.toml: --set width=1"
    assert planned(catalog, settings=["width=1"]).values["width"].where == "--set width=1"


def test_the_state_of_the_suites_repository_is_known(tmp_path: Path) -> None:
    tree(tmp_path)
    assert checkout(tmp_path) == {}
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    checkout.cache_clear()
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert checkout(tmp_path) == {"commit": commit, "changed": False}
    (tmp_path / "notes.txt").write_text("no suite")
    checkout.cache_clear()
    assert not checkout(tmp_path)["changed"]
    (tmp_path / "suites/toy/pytorch/model.py").write_text("")
    checkout.cache_clear()
    assert checkout(tmp_path) == {"commit": commit, "changed": True}


def test_the_fingerprint_contains_the_data_and_the_deviations(catalog: Catalog, tmp_path: Path) -> None:
    plan = planned(catalog, settings=["width=128"])
    deviations = {"width": [128, 64], "ratio": [0.25, 0.5], "throughput_only": [True, False]}
    recorded = plan.fingerprint["deviations"]
    assert isinstance(recorded, dict)
    assert {key: pair for key, pair in recorded.items() if " " not in key} == deviations
    assert plan.fingerprint["data"]
    write_suite(tmp_path, toml=SUITE_TOML.replace("files = 3", "files = 4"))
    other = planned(Catalog.scan([tmp_path]), settings=["width=128"])
    assert other.fingerprint["data"] != plan.fingerprint["data"]
    assert other.fingerprint["config"] == plan.fingerprint["config"]
    assert one_card_plan(plan).fingerprint["data"] == plan.fingerprint["data"]


# -- the fingerprint of a case covers the code that the case uses, and no other code -------------------------

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(flagperf_driver.__file__).parent


def test_the_suites_of_this_repository_depend_on_their_own_readers_only(tmp_path: Path) -> None:
    for name in ("common", "bert/pytorch", "glm/pytorch", "resnet50/pytorch"):
        shutil.copytree(REPO / "suites" / name, tmp_path / "suites" / name)
    catalog = Catalog.scan([tmp_path])

    def changed_by(name: str) -> set[str]:
        before = {suite.model: code_hash(*suite.code) for suite in catalog.suites.values()}
        with (tmp_path / "suites" / name).open("a", encoding="utf-8") as file:
            file.write("\n# changed\n")
        return {suite.model for suite in catalog.suites.values() if code_hash(*suite.code) != before[suite.model]}

    assert changed_by("common/images/folders.py") == {"resnet50"}
    assert changed_by("common/language/mlperf_shards.py") == {"bert", "glm"}
    assert changed_by("glm/pytorch/record.py") == changed_by("glm/pytorch/new.py") == {"glm"}
    assert changed_by("common/shares.py") == {"bert", "glm", "resnet50"}
    for other in ("common/images/README.md", "common/images/tests/new.py", "bert/pytorch/tests/bert.py"):
        assert changed_by(other) == set()


def test_an_unknown_folder_of_shared_code_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path, "suites/common/images/__init__.py", "")
    write_suite(tmp_path, toml=f'common = ["image"]\n{SUITE_TOML}')
    with pytest.raises(CatalogError, match=r"common is 'image'; allowed: images; did you mean images\?"):
        _ = Catalog.scan([tmp_path]).suite("toy", "pytorch").metric


def files_of(framework: str) -> set[Path]:
    return {file for tree in driver_code(framework) for file in (tree.rglob("*.py") if tree.is_dir() else [tree])}


def test_the_driver_code_of_a_case_is_that_of_its_rank() -> None:
    files = files_of("pytorch")
    assert {DRIVER / "driver.py", DRIVER / "training/loop.py", DRIVER / "pytorch/trainer.py"} <= files
    assert not {file for file in files if DRIVER / "node" in file.parents}
    assert DRIVER / "pytorch/trainer.py" not in files_of("paddle")


# -- a measurement whose config names a training: its ranks get the code and the config of the training -----------

OF_CASE = 'of = "toy:pytorch"\ncase_settings: list[str] = []\ncase_config: dict[str, object] = {}\n'


def of_training(root: Path, *settings: str, scale: str = "reference", variant: str = "") -> Plan:
    write(root, "suites/machine/pytorch/suite.toml", f'case_key = "of"\n{PLAIN_MEASUREMENT_TOML}')
    write(root, "suites/machine/pytorch/config/_base.py", OF_CASE)
    write(root, "suites/machine/pytorch/config/_small.py", "")
    write(root, "suites/machine/pytorch/config/mutable_params.py", 'mutable_params = ["of", "case_settings"]\n')
    request = PlanRequest(Case.parse(f"machine:pytorch:X9:1:8:1{variant}"), "acme", scale=scale, settings=settings)
    return make_plan(Catalog.scan([root]), request)


def test_ranks_get_the_config_of_the_training_for_their_shape(tmp_path: Path) -> None:
    tree(tmp_path, "width = 128\n")  # the vendor's, for 1x8
    config: Any = of_training(tmp_path, 'case_settings=["ratio=0.25"]').config
    assert (config["of"], config["case_config"]["width"], config["case_config"]["ratio"]) == (
        "toy:pytorch:1x8",
        128,
        0.25,
    )
    other: Any = of_training(tmp_path, "of=toy:pytorch:2x8").config
    assert (other["of"], other["case_config"]["width"]) == ("toy:pytorch:2x8", 64), "a vendor without a config for it"
    small: Any = of_training(tmp_path, scale="small").config
    assert small["case_config"]["width"] == 8
    swept: Any = of_training(tmp_path, variant=":of-toy+point_most_s-4.0").config
    assert (swept["of"], swept["point_most_s"]) == ("toy:pytorch:1x8", 4.0)
    assert swept["case_config"] == config["case_config"] | {"ratio": 0.5}


def test_ranks_get_the_code_of_the_training_and_its_changes_are_another_case(tmp_path: Path) -> None:
    tree(tmp_path)
    before = of_training(tmp_path)
    write(tmp_path, "suites/toy/pytorch/model.py", "")
    after, other = of_training(tmp_path), of_training(tmp_path, "of=toy:pytorch:1x1")
    assert len({plan.fingerprint["key"] for plan in (before, after, other)}) == 3
    code = Environments(read_settings({}, tmp_path), Catalog.scan([tmp_path])).code(after)
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(code.archive))) as archive:
        assert {"suites/toy/pytorch/model.py", "suites/machine/pytorch/suite.toml"} <= {*archive.getnames()}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("of=toi:pytorch", "of: model 'toi': no such folder in suites/; did you mean toy?"),
        ("of=toy:torch", "of: 'toy:torch': expected MODEL, MODEL:pytorch or MODEL:pytorch:NxP"),
        ("of=toy:pytorch:1x8:1", "of: 'toy:pytorch:1x8:1': expected MODEL"),
        ("of=toy:pytorch:8", "of: shape '8': expected NxP"),
        ("of=machine:pytorch", "of: machine:pytorch is a measurement with the scales reference, small; expected a"),
        ('case_settings=["widht=2"]', "case_settings: toy:pytorch has no such key; did you mean width?"),
    ],
)
def test_a_name_that_is_no_training_is_an_error(tmp_path: Path, setting: str, message: str) -> None:
    tree(tmp_path)
    with pytest.raises(Problems) as error:
        of_training(tmp_path, setting)
    assert message in str(error.value)
