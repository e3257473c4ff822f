"""Select cases: the command line overrides FlagPerf's file, which overrides the settings file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf import original
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.problems import Problems
from pytest_flagperf.selection import Selected, Selection, case_in, hints, keywords, lane, select
from pytest_flagperf.settings import read_settings
from tests.helpers.trees import (
    PLAIN_MEASUREMENT_TOML,
    VENDOR_TOML,
    tree,
    write,
    write_config,
    write_suite,
    write_vendor,
)

CASE = "toy:pytorch:X9:1:8:1"
FILE = f'vendor = "acme"\ncase = ["{CASE}=data"]\n'
CONF = f'VENDOR = "acme"\nCASES = {{\n    "{CASE}": "data",\n}}\n'


def chosen(
    root: Path, file: str = 'vendor = "acme"', conf: str | None = None, config: str = "", **given: Any
) -> Selection:
    catalog = tree(root, config)
    write_config(root, name="config_X9x1x1.py")
    write(root, "flagperf.toml", file)
    read = original.read_test_conf(write(root, "test_conf.py", conf)) if conf else None
    return select(read_settings(given, root, Path("/started")), catalog, read)


def data_by_case(cases: Selection) -> Mapping[str, tuple[str | None, str]]:
    return {str(one.case): (one.data_dir, one.data_source) for one in cases.cases}


def problem(root: Path, *arguments: Any, **given: Any) -> str:
    with pytest.raises(Problems) as caught:
        chosen(root, *arguments, **given)
    return str(caught.value).replace(f"{root}/", "")


def test_default_shapes_that_need_more_hosts_are_unsupported_and_requested_shapes_are_kept(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    write(tmp_path, "vendors/acme/vendor.toml", VENDOR_TOML.replace('"1x1", "1x8"', '"1x8", "2x8"'))
    write_config(tmp_path, name="config_X9x2x8.py")

    def unsupported(hosts: int, **given: Any) -> list[str | None]:
        settings = read_settings({"vendor": "acme", **given}, tmp_path, tmp_path)
        return [one.unsupported for one in select(settings, catalog, None, hosts).cases]

    why = "needs 2 hosts, 1 available; add hosts with --cluster or in [cluster] of flagperf.toml"
    assert unsupported(1) == [None, why]
    assert unsupported(2) == unsupported(1, nodes="1x8,2x8") == unsupported(1, plan=True) == [None, None]


def test_the_frameworks_of_a_model_run_in_the_order_of_the_vendor(tmp_path: Path) -> None:
    for framework in ("alpha", "beta", "pytorch"):
        write_suite(tmp_path, framework=framework)
    more = '[framework.alpha]\ndevice = "acme"\nbackend = "acl"\n'
    write_vendor(tmp_path, toml=VENDOR_TOML.replace("[chips.X9]", f"{more}[chips.X9]"))
    settings = read_settings({"vendor": "acme", "scale": "small"}, tmp_path, tmp_path)
    cases = select(settings, Catalog.scan([tmp_path]), None).cases
    # The vendor does not know beta.
    assert [str(one.case) for one in cases] == [
        f"toy:{framework}:X9:1:{cards}:1" for framework in ("pytorch", "alpha", "beta") for cards in (1, 8)
    ]


@pytest.mark.parametrize(("file", "conf"), [(FILE, None), ('vendor = "acme"', CONF)])
@pytest.mark.parametrize("given", [{"nodes": "1x1"}, {"nodes": "1x1", "hw": "X9"}, {"nodes": "1x1", "vendor": "acme"}])
def test_the_command_line_replaces_files(tmp_path: Path, file: str, conf: str | None, given: dict[str, str]) -> None:
    assert list(data_by_case(chosen(tmp_path, file, conf))) == [CASE]
    selection = chosen(tmp_path, file, conf, **given)
    assert list(data_by_case(selection)) == ["toy:pytorch:X9:1:1:1"]
    name = "test_conf.py" if conf else "flagperf.toml"
    assert f"{name}: its cases (1) are ignored: --nodes" in selection.notes[-1]


def test_cases_of_the_command_line_and_of_flagperf_override_the_settings_files(tmp_path: Path) -> None:
    selection = chosen(tmp_path, FILE, CONF, case=["toy:pytorch:X9:1:1:2"], nodes="1x8", vendor="acme", repeat=5)
    assert list(data_by_case(selection)) == ["toy:pytorch:X9:1:1:2"]
    assert selection.notes == ()
    selection = chosen(tmp_path, FILE, CONF.replace(CASE, "toy:pytorch:X9:1:1:3"))
    assert list(data_by_case(selection)) == ["toy:pytorch:X9:1:1:3"]
    assert len(data_by_case(chosen(tmp_path, FILE, hw="A1x2"))) == 2, "hardware alone also selects a matrix"


def test_measurements_of_flagperf_are_figures_of_our_cases_and_others_are_absent(tmp_path: Path) -> None:
    tree(tmp_path)
    suite = PLAIN_MEASUREMENT_TOML.replace("[figures.copy]", '[figures.copy]\noriginal = "main_memory-bandwidth"')
    suite = suite.replace("[figures.extra]", '[figures.extra]\noriginal = "main_memory-capacity"')
    write(tmp_path, "suites/memory/pytorch/suite.toml", suite)
    text = "HOSTS: [h1, h2]\nNPROC_PER_NODE: 8\nCASES:\n" + "".join(
        f"  '{name}:X9': pytorch_2.3\n"
        for name in ("main_memory-bandwidth", "main_memory-capacity", "main_memory-speed")
    )
    conf = original.read_test_conf(write(tmp_path, "host.yaml", text))
    settings = read_settings({"vendor": "acme"}, tmp_path, tmp_path)
    selection = select(settings, Catalog.scan([tmp_path]), conf, hosts=2)
    assert [str(one.case) for one in selection.cases] == ["memory:pytorch_2.3:X9:2:8:1"]
    assert [note.rpartition("host.yaml:")[2] for note in selection.notes] == [
        "4: main_memory-bandwidth is figure copy of case memory:pytorch_2.3:X9:2:8:1",
        "5: main_memory-capacity is figure extra of case memory:pytorch_2.3:X9:2:8:1",
    ]
    (absent,) = selection.absent
    assert absent.unsupported.startswith("model 'main_memory-speed': no such folder in suites/")


@pytest.mark.parametrize(("file", "conf"), [(FILE, None), ('vendor = "acme"', CONF)])
def test_repeat_of_the_command_line_applies_to_cases_of_files(tmp_path: Path, file: str, conf: str | None) -> None:
    assert list(data_by_case(chosen(tmp_path, file, conf, repeat=4))) == ["toy:pytorch:X9:1:8:4"]
    assert list(data_by_case(chosen(tmp_path, f"{file}\nrepeat = 4\n", conf))) in ([CASE], ["toy:pytorch:X9:1:8:1"])


def test_cases_that_differ_only_in_rounds_are_the_same_with_repeat(tmp_path: Path) -> None:
    two = f'vendor = "acme"\ncase = ["{CASE}", "{CASE[:-1]}3"]\n'
    assert len(data_by_case(chosen(tmp_path, two))) == 2
    assert list(data_by_case(chosen(tmp_path, two, repeat=2))) == ["toy:pytorch:X9:1:8:2"]
    assert "is listed twice" in problem(tmp_path, two.replace("8:3", "8:1"), repeat=2)


def test_hardware_without_a_vendor_selects_the_vendor_with_this_chip(tmp_path: Path) -> None:
    def vendors(**given: Any) -> set[str]:
        return {one.vendor.name for one in chosen(tmp_path, "", **given).cases}

    assert vendors(hw="X9") == {"acme"}
    other = VENDOR_TOML.replace("[chips.A1x2]", "[chips.B1]")
    write(tmp_path, "vendors/other/vendor.toml", other)
    assert vendors(hw="A1x2") == {"acme"}
    assert vendors(hw="B1") == {"other"}
    assert problem(tmp_path, "", hw="X9") == "--hw=X9: X9 is a chip of acme or other; choose one with --vendor"
    assert vendors(hw="X9", vendor="other") == {"other"}
    # A vendor that a file or an option names is not replaced.
    assert problem(tmp_path, hw="B1") == "--hw=B1: not a chip of acme; use --vendor=other (choose from X9, A1x2)"


def test_a_misspelt_chip_is_searched_in_all_vendors_unless_a_vendor_is_set(tmp_path: Path) -> None:
    alone = VENDOR_TOML.partition("[chips.X9]")[0] + "[chips.CPU]\n"
    write(tmp_path, "vendors/cpu/vendor.toml", alone)
    assert problem(tmp_path, "", hw="x9") == "--hw=x9: not a chip of cpu; did you mean X9? (choose from CPU)"
    assert problem(tmp_path, "", hw="x9", vendor="cpu") == "--hw=x9: not a chip of cpu (choose from CPU)"


def test_a_case_has_its_parts_as_keywords(tmp_path: Path) -> None:
    cases = chosen(tmp_path).cases
    assert cases[0].keywords == ("toy", "pytorch", "X9", "1x1", "acme", "reference")
    assert {"acme", "1x1", "converges", "measurement"} <= {*keywords(cases)}


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("toi", "-k: no test matches 'toi'; did you mean toy?"),
        ("not toy and (SPEDUP)", "-k: no test matches 'SPEDUP'; did you mean speedup?"),
        ("toy and 2x8", "-k: no test matches '2x8'; --nodes=2x8 adds it"),
        ("a1X2", "-k: no test matches 'a1X2'; --hw=A1x2 adds it"),
        ("small", "-k: no test matches 'small'; --scale=small adds it"),
        *((expression, "") for expression in ("toy and acme", "TO", "1:8", "something-else")),
    ],
)
def test_a_word_without_matches_is_named_with_suggestions(tmp_path: Path, expression: str, hint: str) -> None:
    assert hints(expression, chosen(tmp_path).cases, Catalog.scan([tmp_path])) == [*filter(None, [hint])]


def test_the_data_directory_has_its_source(tmp_path: Path) -> None:
    def data(*arguments: Any, **given: Any) -> tuple[str | None, str]:
        return next(iter(data_by_case(chosen(tmp_path, *arguments, **given)).values()))

    acme = 'vendor = "acme"'
    assert data(acme, nodes="1x8") == (None, "")
    assert data(acme, nodes="1x8", data_dir="d") == ("/started/d", "--data-dir")
    assert data(f'{acme}\ndata-dir = "d"', nodes="1x8") == (f"{tmp_path}/d", "flagperf.toml")
    assert data(FILE) == (f"{tmp_path}/data", "flagperf.toml")
    assert data(acme, CONF) == (f"{tmp_path}/data", "test_conf.py:3")
    assert data(acme, case=[f"{CASE}=d"], data_dir="e") == ("/started/d", f"--case {CASE}=DIR")
    assert data(FILE, data_dir="d") == data(acme, CONF, data_dir="d") == ("/started/d", "--data-dir")


@pytest.mark.parametrize("given", [{"case": [f"{CASE}=/data/toy"]}, {"data_dir": "/data/toy"}], ids=["case", "all"])
def test_a_folder_that_the_scale_does_not_read_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    sentence = "the data of scale small are included in the suite, and no folder is read"
    assert sentence in problem(
        tmp_path, vendor="acme", scale="small", nodes="1x1" if "data_dir" in given else None, **given
    )
    assert chosen(tmp_path, vendor="acme", nodes=None if "case" in given else "1x8", **given).cases[0].data_dir


def test_problems_of_the_command_line_name_the_option_and_a_files_folder_is_no_problem(tmp_path: Path) -> None:
    (selected,) = chosen(tmp_path, FILE, scale="small").cases
    assert (selected.scale, selected.data_dir) == ("small", None)
    assert problem(tmp_path, hw="X8").startswith("--hw=X8: not a chip of acme")
    assert problem(tmp_path, nodes="8").startswith("--nodes=8: shape '8'")
    assert problem(tmp_path, set=["vendor=x", "data_dir=/d"]).splitlines() == [
        "--set vendor: cannot be set; use --vendor",
        "--set data_dir: cannot be set; use --data-dir",
    ]


def test_problems_of_a_file_name_the_file(tmp_path: Path) -> None:
    acme = 'vendor = "acme"\n'
    assert problem(tmp_path, f'{acme}hw = "X8"').startswith("flagperf.toml: hw = 'X8': not a chip of acme (choose from")
    assert problem(tmp_path, f'{acme}nodes = "8"').startswith("flagperf.toml: nodes = '8': shape '8'")
    assert problem(tmp_path, f'{acme}set = ["a"]').startswith("flagperf.toml: --set a: expected key=value")
    assert "no such folder in vendors/; did you mean acme?" in problem(tmp_path, 'vendor = "acmee"')
    assert problem(tmp_path, 'vendor = "acmee"').endswith("(flagperf.toml)")
    assert problem(tmp_path, "").endswith("(the default; choose one with --vendor)")


def test_throughput_only_is_read_from_options_and_config(tmp_path: Path) -> None:
    def flags(**given: Any) -> list[bool]:
        cases: tuple[Selected, ...] = chosen(tmp_path, **given).cases
        return [one.throughput_only for one in cases]

    assert flags(set=["throughput_only=True"]) == [True, True]
    assert flags(set=["throughput_only=False"]) == [False, False]
    assert flags(throughput_only=False) == [False, False]
    assert flags(throughput_only=False, synthetic=True) == [True, True]
    assert flags(synthetic=True) == [True, True]


def test_one_card_of_the_reference_scale_alone_is_for_throughput_by_default(tmp_path: Path) -> None:
    def flags(one_card: str = "", **given: Any) -> dict[str, bool]:
        catalog = tree(tmp_path)
        write_config(tmp_path, one_card, name="config_X9x1x1.py")
        settings = read_settings({"vendor": "acme", **given}, tmp_path, Path("/started"))
        return {str(one.case.shape): one.throughput_only for one in select(settings, catalog, None).cases}

    assert flags() == {"1x1": True, "1x8": False}
    assert flags("throughput_only = False\n") == {"1x1": False, "1x8": False}
    assert flags(throughput_only=True) == {"1x1": True, "1x8": True}
    assert flags(scale="small") == {"1x1": False, "1x8": False}


def swept(root: Path, *each: str, **given: Any) -> Selection:
    return chosen(root, each=list(each) or None, synthetic=True, nodes="1x8", **given)


def test_each_case_is_selected_once_with_each_combination_of_values(tmp_path: Path) -> None:
    cases = swept(tmp_path, "width=8,16", "note=b,a").cases
    variants = ["note-b+width-8", "note-a+width-8", "note-b+width-16", "note-a+width-16"]
    assert [str(one.case) for one in cases] == [f"{CASE}:{variant}" for variant in variants]
    assert not any(one.unsupported for one in cases)
    assert "note-a" in cases[1].keywords
    assert [str(one.case) for one in swept(tmp_path).cases] == [CASE], "without --each named as ever"
    order = [one.case.variant_name for one in swept(tmp_path, "width=64,8,16").cases]
    assert order == ["width-8", "width-16", "width-64"], "the smaller sizes run first"
    named = swept(tmp_path, case=[f"{CASE}:width-8", f"{CASE}:width-16"]).cases
    assert [one.case.variant_name for one in named] == ["width-8", "width-16"]
    of_each_case = swept(tmp_path, "width=8,16", case=[CASE]).cases
    assert [str(one.case) for one in of_each_case] == [str(one.case) for one in named]


def test_values_that_only_some_cases_support_leave_the_others_out_with_the_reason(tmp_path: Path) -> None:
    tree(tmp_path)
    write_suite(tmp_path, "other")
    write_config(tmp_path, folder="other-pytorch")
    base = tmp_path / "suites/other/pytorch/config/_base.py"
    base.write_text(base.read_text().replace("width = 64\n", "").replace("ratio", "share"))
    base.with_name("mutable_params.py").write_text('mutable_params = ["share"]\n')
    write_suite(tmp_path, "none", "paddle")  # a framework that the vendor does not have
    reasons = {str(one.case): one.unsupported for one in swept(tmp_path, "width=8,16").cases}
    assert all(reasons.pop(f"none:paddle:X9:1:8:1:width-{width}") for width in (8, 16))
    assert reasons == {
        f"{CASE}:width-8": None,
        f"{CASE}:width-16": None,
        "other:pytorch:X9:1:8:1:width-8": "--each width: other:pytorch has no such key",
        "other:pytorch:X9:1:8:1:width-16": "--each width: other:pytorch has no such key",
    }


def test_a_value_is_left_out_where_other_values_of_the_sweep_do_not_allow_it(tmp_path: Path) -> None:
    cases = swept(tmp_path, "stop_at_target=True,False", "max_steps=None,5").cases
    refused = {one.case.variant_name: one.unsupported for one in cases if one.unsupported}
    problem = "--each stop_at_target=False: stop_at_target = False needs a limit; set one of max_steps, max_epochs, "
    assert refused == {"max_steps-None+stop_at_target-False": f"{problem}max_samples"}


@pytest.mark.parametrize(
    ("each", "given", "message"),
    [
        (["width"], {}, "--each width: expected key=value,value"),
        (["width="], {}, "--each width: value 1 of 1 is empty; expected key=value,value"),
        (["width=1,,2"], {}, "--each width: value 2 of 3 is empty"),
        (["ratio=0.5,5e-1"], {}, "--each ratio: value 5e-1 is listed twice"),
        (["width=1", "width=2"], {}, "--each width: already in another --each; remove one"),
        (["width=1"], {"set": ["width=2"]}, "--each width: also in --set; remove one"),
        (["note=a/b"], {}, "--each note: value 'a/b' cannot be in the name of a case; expected letters, digits"),
        (["frozen=1"], {}, "--each frozen=1: cannot be set here: it is not in mutable_params"),
        (["width=1,a"], {}, "--each width=a: is 'a'; expected a whole number or None (case toy:pytorch:X9:1:8:1:w"),
        (["width=1"], {"case": [f"{CASE}:width-8"]}, f"case {CASE}:width-8 has a variant; remove it, or --each=w"),
        ([], {"case": [f"{CASE}:width-8"], "set": ["width=9"]}, "its variant and --set both have width; remove it"),
        (["precision=bf16"], {"set": ["float8=True"]}, "--each precision: also in --set; remove one"),
        (["precision=float8"], {}, "--each precision=float8: expected 'fp32' or 'tf32' or 'bf16' or 'fp16'"),
        (["note=https://user:secret@host"], {}, "an address with a user name, a password or a token is not accepted"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused(tmp_path: Path, each: list[str], given: Any, message: str) -> None:
    with pytest.raises(Problems) as caught:
        swept(tmp_path, *each, **given)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


KNOWN = {
    "alpha:plain:CPU:1:2:1", "big-alpha:plain:CPU:1:2:1", "alpha:plain:CPU:1:2:12", "b:plain_1.8:H-1:2:8:3",
    "alpha:plain:CPU:1:2:1:lr-1e-3", "alpha:plain:CPU:1:2:1:lr-1e-3+seed-1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "case"),
    [
        ("alpha:plain:CPU:1:2:1", "alpha:plain:CPU:1:2:1"),
        ("alpha:plain:CPU:1:2:1-round1", "alpha:plain:CPU:1:2:1"),
        ("a-alpha:plain:CPU:1:2:1-round1", "alpha:plain:CPU:1:2:1"),
        ("a:b-[c]-b:plain_1.8:H-1:2:8:3-d:e", "b:plain_1.8:H-1:2:8:3"),
        ("beta:plain:CPU:1:2:1", None),
        ("alpha:plain:CPU:1:2:13", None),
        ("malpha:plain:CPU:1:2:1", None),
        ("alpha:plain:CPU:1:2:1:lr-1e-3-round1", "alpha:plain:CPU:1:2:1:lr-1e-3"),
        ("alpha:plain:CPU:1:2:1:lr-1e-3+seed-1-round12-y", "alpha:plain:CPU:1:2:1:lr-1e-3+seed-1"),
        ("alpha:plain:CPU:1:2:1:lr-1e-3+seed-12", None),
    ],
)
def test_a_node_id_carries_a_known_case_or_none(parameters: str, case: str | None) -> None:
    nodeid = f"suites/test_x.py::TestA::test_b[{parameters}]"
    assert case_in(nodeid, KNOWN) == case
    assert lane(nodeid, KNOWN) == (":".join(case.split(":")[:3]) if case else nodeid)


def test_a_case_outside_of_the_brackets_is_ignored_and_files_share_a_lane() -> None:
    assert case_in("alpha:plain:CPU:1:2:1/test_x.py::test_b", KNOWN) is None
    ids = [f"{file}::test_a[p-alpha:plain:CPU:1:{n}:1]" for n, file in ((2, "one.py"), (2, "two.py"))]
    assert len({lane(nodeid, KNOWN) for nodeid in ids}) == 1
