"""Suites, vendors and configs of a tree: finding and checking them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_flagperf.case import Case, Shape
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.catalog.vendor_images import find
from pytest_flagperf.plan import PlanRequest, make_plan, overview
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


def gap(catalog: Catalog, hardware: str = "X9", shape: str = "1x8", scale: str = "reference") -> str | None:
    suite, vendor = catalog.suite("toy", "pytorch"), catalog.vendor("acme")
    return catalog.unsupported(suite, vendor, hardware, Shape.parse(shape), scale)


def test_folders_with_their_toml_are_suites_and_vendors(tmp_path: Path) -> None:
    write(tmp_path, "suites/common/data.py", "")
    write(tmp_path, "suites/half/pytorch/model.py", "")
    catalog = tree(tmp_path)
    assert list(catalog.suites) == [("toy", "pytorch")]
    assert list(catalog.vendors) == ["acme"]
    assert catalog.suite("toy", "pytorch_1.13").scales["reference"].data[0].files == 3
    assert catalog.vendor("acme").shapes == (Shape(1, 1), Shape(1, 8))


def test_a_root_may_have_configs_for_a_vendor_of_another_root_but_not_its_suite(tmp_path: Path) -> None:
    write_suite(tmp_path / "one")
    write_suite(tmp_path / "two")
    with pytest.raises(CatalogError, match=r"suite toy:pytorch exists twice: .*one.* and .*two"):
        Catalog.scan([tmp_path / "one", tmp_path / "two"])
    assert Catalog.scan([tmp_path / "one", tmp_path / "one"]).suites
    write_vendor(tmp_path / "theirs")
    write_suite(tmp_path / "mine")
    config = write_config(tmp_path / "mine")
    catalog = Catalog.scan([tmp_path / "theirs", tmp_path / "mine"])
    assert catalog.find(Case.parse("toy:pytorch:X9:1:8:1"), "acme", "reference") == config


def test_a_suite_in_a_framework_that_the_vendor_lacks_is_refused(tmp_path: Path) -> None:
    write_suite(tmp_path, framework="mindspore")
    catalog, case = tree(tmp_path), Case.parse("toy:mindspore:X9:1:1:1")
    file = tmp_path / "vendors/acme/vendor.toml"
    with pytest.raises(CatalogError) as caught:
        catalog.find(case, "acme", "small")
    assert str(caught.value) == (
        f"case {case}: acme has no framework 'mindspore' (choose from pytorch); "
        f"add [framework.mindspore] with device and backend to {file}"
    )
    table = '[framework.mindspore]\ndevice = "Ascend"\nbackend = "hccl"\n'
    write_vendor(tmp_path, toml=VENDOR_TOML + table.replace("mindspore]", "mindspor]"))
    with pytest.raises(CatalogError, match=r"\[framework\.mindspor\]: unknown framework; did you mean mindspore\?"):
        Catalog.scan([tmp_path]).find(case, "acme", "small")
    write_vendor(tmp_path, toml=VENDOR_TOML + table)
    assert make_plan(Catalog.scan([tmp_path]), PlanRequest(case, vendor="acme", scale="small")).device == "Ascend"
    pytorch = Case.parse("toy:pytorch:X9:1:1:1")
    assert make_plan(Catalog.scan([tmp_path]), PlanRequest(pytorch, vendor="acme", scale="small")).device == "acme"


def test_a_chips_name_may_contain_an_x_and_digits(tmp_path: Path) -> None:
    write_config(tmp_path, name="config_A1x2x1x8.py")
    write_config(tmp_path, name="config_common.py")
    write_config(tmp_path, name="config_X9x2x8py")
    catalog = tree(tmp_path)
    configs = catalog.configs(catalog.suite("toy", "pytorch"), catalog.vendor("acme"))
    assert set(configs) == {("A1x2", Shape(1, 8)), ("X9", Shape(1, 8))}


def test_a_missing_name_is_reported_with_the_available_names(tmp_path: Path) -> None:
    write_config(tmp_path, name="config_X9x2x8.py")
    catalog = tree(tmp_path)
    assert gap(catalog) is None
    assert gap(catalog, shape="1x1") == "no config_X9x1x1.py of acme for toy:pytorch; available: X9 1x8, 2x8"
    assert gap(catalog, hardware="x9") == "hardware 'x9' is not a chip of acme; did you mean X9? (choose from X9, A1x2)"
    assert gap(catalog, scale="smal") == (
        "toy:pytorch has no scale 'smal'; did you mean small? (choose from reference, small)"
    )
    assert (
        gap(catalog, shape="1x9", scale="small") == "shape 1x9 needs 9 cards on each host; a host has at most 8 of X9"
    )


def test_a_folder_that_no_suite_uses_is_suggested_and_noted(tmp_path: Path) -> None:
    write_suite(tmp_path)
    write_suite(tmp_path, model="toys")
    write_vendor(tmp_path)
    write_config(tmp_path, folder="toys-pytorch")
    missing = "acme has no config for toy:pytorch (expected config_X9x1x8.py)"
    assert gap(Catalog.scan([tmp_path])) == f"{missing}; --scale=small needs no config", "another suite's folder"
    write_config(tmp_path, folder="Toy-pytorch")
    catalog = Catalog.scan([tmp_path])
    assert gap(catalog) == f"{missing}; did you mean Toy-pytorch?"
    (note,) = catalog.notes_on_folders({"acme"})
    assert "vendors/acme/Toy-pytorch is not used: expected MODEL-FRAMEWORK of a suite; did you mean toy-pytorch" in note


def test_a_vendors_folder_without_a_vendor_toml_is_named(tmp_path: Path) -> None:
    write_vendor(tmp_path)
    (tmp_path / "vendors" / "acmee").mkdir()
    with pytest.raises(CatalogError, match=r"^vendor 'acmee': no vendor.toml in .*/vendors/acmee$"):
        Catalog.scan([tmp_path]).vendor("acmee")


@pytest.mark.parametrize("name", ["Acme", "ac-me", "ac:me", "ac me", "1acme"])
def test_a_vendors_folder_must_have_a_valid_name(tmp_path: Path, name: str) -> None:
    write_vendor(tmp_path, name)
    with pytest.raises(CatalogError, match=f"invalid folder name '{name}'; expected lowercase letters, digits and _"):
        _ = Catalog.scan([tmp_path]).vendor(name).chips


@pytest.mark.parametrize(
    ("case", "vendor", "message"),
    [
        ("tyo:pytorch:X9:1:8:1", "acme", "did you mean toy"),
        ("toy:pytoch:X9:1:8:1", "acme", "model 'toy' has no framework 'pytoch'; did you mean pytorch"),
        ("toy:pytorch:X9:1:8:1", "acne", "vendor 'acne': .*did you mean acme"),
        ("zzzzz:pytorch:X9:1:8:1", "acme", r"\(choose from toy\)"),
    ],
)
def test_unknown_names_are_reported_with_similar_names(tmp_path: Path, case: str, vendor: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        tree(tmp_path).find(Case.parse(case), vendor, "reference")


def problems_of_suite(root: Path, toml: str) -> list[str]:
    write_suite(root, toml=toml)
    with pytest.raises(CatalogError) as caught:
        _ = Catalog.scan([root]).suite("toy", "pytorch").scales
    return [problem.removeprefix(f"{root.resolve()}/suites/toy/pytorch/") for problem in caught.value.problems]


def test_all_problems_of_a_suite_toml_are_reported_at_once_with_their_line(tmp_path: Path) -> None:
    assert problems_of_suite(tmp_path, 'sample_unit = "x"\nmetric = = 3\n')[0].startswith("suite.toml:2: ")
    toml = SUITE_TOML.replace("unit = ", "unti = ").replace("target = 0.75", 'target = "high"')
    toml = toml.replace("files = 3", "files = 3.5").replace("sample_unti", "sample_unit")
    assert set(problems_of_suite(tmp_path, toml)) == {
        "suite.toml:2: metric.unit is missing",
        "suite.toml:5: metric.unti: no such key; did you mean unit?",
        "suite.toml:8: scales.reference.target is 'high'; expected a number",
        "suite.toml:13: scales.reference.data.0.files is 3.5; expected a whole number of at most 64 bits",
    }


FURTHER = {
    "{ top5 = 1.2 }": "suite.toml:16: scales.small.also.top5 is 1.2; expected 0 to 1, the metric's range",
    "{ top5 = 0.9, top1 = 0.9 }": "suite.toml:16: scales.small.also has 'top1', the metric itself; set scales.small",
    "{ top5 = true }": "suite.toml:16: scales.small.also.top5 is True; expected a number",
    "0.9": "suite.toml:16: scales.small.also is 0.9; expected a table",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('direction = "higher"', 'direction = "up"'), "metric.direction is 'up'; allowed: higher, lower"),
        (('kind = "folder"', 'kind = "foldr"'), "'foldr'; allowed: file, folder; did you mean folder"),
        (("target = 0.75", 'target = 0.75\ncounted_on = "gpu"'), "scales.reference.counted_on is 'gpu'; allowed: meta"),
        (("range = [0, 1]\n", ""), "suite.toml:2: metric.range is missing"),
        (("[0, 1]", "[1, 0]"), "suite.toml:6: metric.range is [1.0, 0.0]; expected the lowest and the highest"),
        (("[0, 1]", "[0]"), "metric.range is [0.0]; expected"),
        (("[0, 1]", "[0, inf]"), "metric.range.1 is inf; expected a finite number"),
        (("[0, 1]", "[0, 1]\nloss_range = [3]"), "suite.toml:7: metric.loss_range is [3.0]; expected"),
        (
            ("[scales.small]", "[goal]\nchip = 'X9'\nrate = 0\nbatch = 8\nsource = 'a'\n[scales.small]"),
            "goal.rate and goal.batch are 0 and 8; expected more than 0",
        ),
        (("[0, 1]", "[0, 0.8]"), "suite.toml:15: scales.small.target is 0.9; expected 0 to 0.8, the metric's range"),
        *((("target = 0.9\n", f"target = 0.9\nalso = {also}\n"), message) for also, message in FURTHER.items()),
    ],
)
def test_an_invalid_choice_range_or_target_is_reported(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert message in problems_of_suite(tmp_path, SUITE_TOML.replace(*change))[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('kind = "measurement"', 'kind = "measurment"'), "suite.toml:1: kind is 'measurment'; allowed: training,"),
        (('kind = "measurement"', "kind = 3"), "suite.toml:1: kind is 3; expected a string"),
        (('"B/s"', '"GB/s"'), "suite.toml:3: figures.copy.unit is 'GB/s'; allowed: B/s,"),
        (('"memory_gb_s"', '"memory_gbs"'), "suite.toml:6: figures.copy.peak is 'memory_gbs'; allowed: memory_gb_s,"),
        (('over = "bytes"', 'pick = "last"'), 'suite.toml:7: figures.copy: pick = "last" needs over'),
        (("optional = true", "variation = 0.0"), "suite.toml:12: figures.extra.variation is 0; expected a share"),
        (("[scales.small]", "[scales.small]\ntarget = 1.0"), "suite.toml:15: scales.small.target: no such key"),
        (("[scales.small]", "[scales.smal]"), "suite.toml:14: [scales.smal]: allowed: reference, small; did you mean"),
        (("[figures.copy]", "least_ranks = -1\n[figures.copy]"), "suite.toml:2: least_ranks is -1; expected at"),
        (("about", "sample_unit"), "figures.copy.sample_unit: no such key"),
    ],
)
def test_an_invalid_figure_of_a_measurement_is_reported(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    toml = PLAIN_MEASUREMENT_TOML
    assert change[0] in toml
    assert message in "\n".join(problems_of_suite(tmp_path, toml.replace(*change, 1)))


def test_a_measurement_has_the_chips_peaks_and_needs_no_config_at_the_reference_scale(tmp_path: Path) -> None:
    write_suite(tmp_path, toml=f"least_ranks = 2\n{PLAIN_MEASUREMENT_TOML}")
    (tmp_path / "suites/toy/pytorch/config/_base.py").write_text("sizes = [1]\n")
    (tmp_path / "suites/toy/pytorch/config/mutable_params.py").unlink()
    chip = "[chips.X9]\nmemory_gb_s = 100\npromised = { memory_gb_s = 0.8 }"
    write_vendor(tmp_path, toml=VENDOR_TOML.replace("[chips.X9]", chip))
    catalog = Catalog.scan([tmp_path])
    plan = make_plan(catalog, PlanRequest(Case.parse("toy:pytorch:X9:1:8:1"), vendor="acme", scale="reference"))
    copy, extra = plan.figures
    assert (copy.peak, copy.promised, extra.peak, extra.is_required) == (100e9, 0.8, None, False)
    assert (plan.kind, plan.metric.name, plan.metric.value) == ("measurement", "copy", None)
    assert overview(plan, "no estimate")[2] == "copy and 1 more"
    assert plan.program == "suites/toy/pytorch/run_measurement.py"
    assert plan.case_json(1, "/code")["peaks"]["memory_gb_s"] == 100e9
    with pytest.raises(CatalogError, match="toy:pytorch needs at least 2 processes; the shape 1x1 has 1"):
        catalog.find(Case.parse("toy:pytorch:X9:1:1:1"), "acme", "reference")


def test_no_file_is_read_before_its_first_use(tmp_path: Path) -> None:
    write_suite(tmp_path, toml="= broken")
    write_vendor(tmp_path, toml="= broken")
    assert Catalog.scan([tmp_path]).suites


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (write_vendor(tmp_path) / "vendor.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(CatalogError, match=r"vendor\.toml: not UTF-8"):
        _ = Catalog.scan([tmp_path]).vendor("acme").chips


NAMED = {"frame": "maker/frame:any", "frame_2.10": "maker/frame:2.10"}
TOML = "[images] of vendors/acme/vendor.toml"


@pytest.mark.parametrize(
    ("named", "framework", "image"),
    [
        (NAMED, "frame", ("maker/frame:any", TOML, None)),
        (NAMED, "frame_2.10", ("maker/frame:2.10", TOML, None)),  # instead of its Dockerfile
        (NAMED, "frame_2.9", (None, "vendors/acme/images/frame_2.9/Dockerfile", "frame_2.9")),
        (NAMED, "frame_2.8", ("maker/frame:any", f"frame in {TOML}", None)),
        ({}, "frame_2.8", None),  # a Dockerfile is for its own version alone
        ({}, "frame", None),  # a folder without a Dockerfile
    ],
)
def test_an_image_for_exactly_the_version_is_used(
    tmp_path: Path, named: Mapping[str, str], framework: str, image: tuple[str | None, str, str | None] | None
) -> None:
    file = write(tmp_path, "vendors/acme/vendor.toml", '[images]\nframe = "maker/frame:any"\n')
    for name in ("frame_2.9/Dockerfile", "frame_2.10/Dockerfile", "frame/README.md"):
        write(file.parent, f"images/{name}", "")
    found = find(named, file, framework)
    assert (found and (found.name, found.by, found.folder and found.folder.name)) == image
