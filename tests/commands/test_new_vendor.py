"""Follow docs/vendors.md step by step, for a vendor whose device is the CPU and whose tool is a script."""

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from flagperf_driver.node.sampling.probe.tool import Tool
from flagperf_driver.node.sampling.tool_output import NotUnderstood
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.catalog.vendor import Chip, ContainerDefaults, FrameworkNames, VendorToml
from pytest_flagperf.commands import main
from pytest_flagperf.plan import PlanRequest, make_plan
from tests.helpers.walk import Copy

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def walked(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    copy = Copy(tmp_path_factory.mktemp("walked"))
    copy.follow("vendors.md", end="Elsewhere")
    return copy


def outside(copy: Copy) -> list[str]:
    return [line for line in copy.changed if not line.startswith("?? vendors/made/")]


@pytest.mark.slow
def test_no_other_file_changes_and_it_trains_with_its_tool_in_the_results(walked: Copy) -> None:
    assert "?? vendors/made/vendor.toml" in walked.changed
    assert outside(walked) == []
    walked.write("vendors/other/vendor.toml", "")  # the control
    assert outside(walked) == ["?? vendors/other/vendor.toml"]
    shutil.rmtree(walked.root / "vendors" / "other")
    (case,) = walked.runs[0]["cases"]
    assert (case["case"], case["converged"]) == ("resnet50:pytorch:M1:1:1:1", 1)
    figures = {name: metric["median"] for name, metric in case["metrics"].items()}
    assert (figures["device_power"], figures["device_temperature"], figures["device_utilization"]) == (23.5, 41, 0.37)
    assert "made_smi.py" in case["metrics"]["device_power"]["how"]


@pytest.mark.slow
def test_the_config_is_in_the_plan_and_the_step_in_the_report(walked: Copy) -> None:
    (plan,) = (output for command, output in walked.outputs.items() if "--plan" in command)
    assert "resnet50:pytorch:M1:1:2:1" in plan
    assert re.search(r"precision +'bf16' +vendor +vendors/made/resnet50-pytorch/config/config_common.py:4", plan)
    replaced = [run["cases"][0]["outcomes"][0]["environment"].get("replaced steps") for run in walked.runs]
    assert replaced == [None, "convert_model"]
    # The ranks report the step that the plan lists, and the verdict names it.
    outcomes = [run["cases"][0]["outcomes"][0] for run in walked.runs]
    assert not [
        warning for outcome in outcomes for warning in outcome["validity_warnings"] if warning["kind"] == "vendor_code"
    ]
    assert "passed with made's own step convert_model" in " ".join(" ".join(walked.outputs.values()).split())


def lay_out(root: Path, *options: str, code: int = 0) -> Path:
    assert main(["new-vendor", "made", "--hw=M1", *options, f"--to={root}"]) == code
    return root / "vendors" / "made"


@pytest.mark.parametrize("options", [(), ("--device=cpu",), ("--device=npu", "--backend=hccl", "--tool=npu-smi info")])
def test_its_vendor_toml_is_valid_with_all_optional_keys(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = lay_out(tmp_path, *options) / "vendor.toml"
    vendor = Catalog.scan([tmp_path]).vendors["made"]
    assert (vendor.hardware, vendor.toml.scale, vendor.chip("M1").peak_tflops.get("bf16")) == ("M1", "small", None)
    text = re.sub(r"^# (?=\w+ = |\[)", "", file.read_text(), flags=re.MULTILINE)  # with all optional keys set
    shown = tomllib.loads(text)
    known = {field.name for field in fields(VendorToml)}
    assert shown.keys() | {"visible_devices"} == known
    assert shown["framework"].keys() == {"pytorch"}
    assert shown["framework"]["pytorch"].keys() == {field.name for field in fields(FrameworkNames)}
    assert shown["container"].keys() == {field.name for field in fields(ContainerDefaults)}
    assert shown["chips"]["M1"].keys() == {field.name for field in fields(Chip)}
    file.write_text(text)
    assert Catalog.scan([tmp_path]).vendors["made"].chip("M1").peak_tflops.get("bf16") == 80


def test_configs_are_created_for_a_suite_and_all_shapes_but_one_card_train_to_the_target(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, "--suite=resnet50:pytorch", "--suite=glm:pytorch", "--nodes=1x1,1x8,2x8")
    catalog = Catalog.scan([REPO, tmp_path])
    suite, vendor = catalog.suite("resnet50", "pytorch"), catalog.vendor("made")
    assert (vendor.toml.scale, len(vendor.shapes)) == ("reference", 3)
    assert {str(shape) for _, shape in catalog.configs(suite, vendor)} == {"1x1", "1x8", "2x8"}
    measured = {
        shape: make_plan(catalog, PlanRequest(Case.parse(f"glm:pytorch:M1:{shape}:1"), vendor="made", check_data=False))
        for shape in ("1:1", "1:8", "2:8")
    }
    assert {shape: plan.throughput_only for shape, plan in measured.items()} == {
        "1:1": True,
        "1:8": False,
        "2:8": False,
    }
    assert [one.key for one in measured["1:8"].deviations] == []
    assert not (folder / "probe.py").exists()


def test_its_files_pass_the_linter_and_its_probe_refuses_unknown_output(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, "--tool=made-smi -q 'a b'", "--suite=resnet50:pytorch")
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    for words in (("check",), ("format", "--check")):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, "--no-cache", str(tmp_path)], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()
    tool = Tool(str(folder / "probe.py"))
    assert tool.command == ["made-smi", "-q", "a b"]
    with pytest.raises(NotUnderstood, match="no table with the columns Device, Name"):
        tool.parse("| 0 | X | 41C | 3W | 1MiB / 2MiB | 3% |\n+--+")
    head = "| Device | Name | Temp | Power | Memory | Util |\n"
    assert tool.parse(f"{head}| 0 | X | N/A | ? | 1GiB / 2GiB | - |\n+--+") == [{"device": 0, "name": "X"}]
    with pytest.raises(NotUnderstood, match="the table is truncated at"):
        tool.parse(f"{head}| 0 | X | N/A | ? |")


def test_existing_files_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = lay_out(tmp_path)
    before = (folder / "vendor.toml").read_text()
    lay_out(tmp_path, "--device=cpu", code=2)
    assert f"{folder}: already exists" in capsys.readouterr().err
    assert (folder / "vendor.toml").read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["Made"], "'Made': expected lowercase letters, digits and _"),
        (["cpu"], "vendor 'cpu' already exists: "),
        (["pwr"], "'pwr': the host already writes pwr_monitor.log"),
        (["made", "--hw=M.1"], "--hw=M.1: expected letters, digits, - and _"),
        (["made", "--device=npu"], "--device=npu: unknown backend of this device; pass --backend=NAME"),
        (["made", "--device=n\"pu", "--backend=x"], "expected one word"),
        (["made", "--tool="], "--tool is empty"),
        (["made", "--tool='smi"], "--tool='smi: No closing quotation"),
        (["made", "--nodes=8"], "--nodes=8: shape '8': expected NxP"),
        (["made", "--suite=gml:pytorch"], "--suite=gml:pytorch: model 'gml': no such folder in suites/; did you"),
        (["made", "--suite=glm"], "--suite=glm: model 'glm' has no framework ''"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported_and_leave_no_files(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-vendor", "--hw=M1", *options, f"--to={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_similar_name_of_another_vendor_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-vendor", "cpus", "--hw=M1", f"--to={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "note: a vendor with a similar name exists; did you mean cpu?" in out
    assert f"pytest suites --vendor=cpus --roots={tmp_path} --scale=small --plan" in out
    assert main(["new-vendor", "acme", "--hw=M1", f"--to={tmp_path}"]) == 0
    assert "similar name" not in capsys.readouterr().out, "the control: ascend is another name"


def test_outside_a_tree_a_folder_must_be_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-vendor", "made", "--hw=M1"]) == 2
    assert "no suites/ or vendors/ in this folder or its parents; pass a folder with" in capsys.readouterr().err
