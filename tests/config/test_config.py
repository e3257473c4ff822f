"""The layers of a case's config, and the origin of each value."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.config import DEFAULTS, ConfigError, Resolved, Value, load, parse_settings, resolve
from pytest_flagperf.config.module import MAX_BYTES
from tests.helpers.trees import (
    BASE,
    MUTABLE,
    PLAIN_MEASUREMENT_TOML,
    SUITE_TOML,
    VENDOR_TOML,
    tree,
    write,
    write_config,
    write_suite,
    write_vendor,
)

CONFIG = "vendors/acme/toy-pytorch/config/config_X9x1x8.py"


def of(catalog: Catalog, *settings: str, case: str = "toy:pytorch:X9:1:8:1", **options: Any) -> Resolved:
    """Resolve the config of a case of acme, by default of the toy, from its files as they are."""
    one, vendor = Case.parse(case), catalog.vendor("acme")
    given = {**parse_settings(settings), **options.pop("given", {})}
    options = {"scale": "reference", "check_data": False, **options}
    return resolve(catalog.suite(one.model, one.framework), vendor, one, settings=given, catalog=catalog, **options)


def problems_of(catalog: Catalog, *settings: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        of(catalog, *settings, **options)
    return caught.value.problems


def resolved(root: Path, config: str = "", settings: tuple[str, ...] = (), **options: Any) -> Resolved:
    return of(tree(root, config), *settings, **options)


def problems(root: Path, config: str = "", settings: tuple[str, ...] = ()) -> list[str]:
    return problems_of(tree(root, config), *settings)


def test_the_table_of_parallel_has_a_short_form_and_must_fit_the_shape_and_the_model(tmp_path: Path) -> None:
    toml = SUITE_TOML + '[parallel]\ntensor = ["width", "train_batch_size"]\n'
    catalog = tree(tmp_path)
    assert problems_of(catalog, "parallel=tensor=2") == [
        "--set parallel=tensor=2: toy:pytorch does not support tensor; expected tensor = 1"
    ]
    write(tmp_path, "suites/toy/pytorch/suite.toml", toml)
    catalog = Catalog.scan([tmp_path])
    assert of(catalog, "parallel=shard=4,tensor=2").values["parallel"].value == {"shard": 4, "tensor": 2}
    assert of(catalog, "parallel={'shard': -1}").values["parallel"].value == {"shard": -1}
    assert problems_of(catalog, "parallel=tensor=8", "train_batch_size=20") == [
        "--set parallel=tensor=8: tensor = 8 does not divide train_batch_size = 20 (--set train_batch_size=20)"
    ]
    for text in ("foo", "shard=x", "shard=4,shard=2"):
        assert problems_of(catalog, f"parallel={text}") == [
            f"--set parallel={text}: expected ddp, fsdp or a table, as in shard=4,tensor=2; got {text!r}"
        ]
    write_config(tmp_path, 'parallel = {"shart": 2}\n')
    assert problems_of(Catalog.scan([tmp_path])) == [
        f"{CONFIG}:1: parallel = {{'shart': 2}}: unknown axis 'shart'; choose from replicate, shard, expert, tensor"
    ]


def test_suite_toml_names_axes_and_keys_that_exist(tmp_path: Path) -> None:
    tree(tmp_path)
    file = write(tmp_path, "suites/toy/pytorch/suite.toml", SUITE_TOML + '[parallel]\ntensor = ["widht", "ratio"]\n')
    assert problems_of(Catalog.scan([tmp_path])) == [
        "suites/toy/pytorch/suite.toml: parallel.tensor contains 'widht': no such key",
        "suites/toy/pytorch/suite.toml: parallel.tensor contains 'ratio': its value is 0.5, expected a whole number",
    ]
    file.write_text(SUITE_TOML + '[parallel]\ntensr = ["width"]\n')
    with pytest.raises(CatalogError, match=r"parallel\.tensr: unknown axis; .*; did you mean tensor\?"):
        of(Catalog.scan([tmp_path]))


def test_each_layer_overrides_the_layers_below_and_has_its_line(tmp_path: Path) -> None:
    values = resolved(tmp_path, "\nwidth = 128\n", ("ratio=0.25",)).values
    actual = {key: (values[key].value, values[key].layer, values[key].where) for key in ("width", "ratio", "frozen")}
    assert actual == {
        "width": (128, "vendor", f"{CONFIG}:2"),
        "ratio": (0.25, "setting", "--set ratio=0.25"),
        "frozen": (3, "suite", "suites/toy/pytorch/config/_base.py:8"),
    }
    assert values["momentum"].layer == "defaults"
    assert values["momentum"].file == "flagperf_driver/defaults.py"
    assert "momentum = " in DEFAULTS.read_text().splitlines()[values["momentum"].line - 1]
    assert values["vendor"].value == "acme"


def test_an_option_of_a_framework_is_unknown_in_suites_of_others(tmp_path: Path) -> None:
    write_suite(tmp_path, framework="numpy")
    write_vendor(tmp_path, toml=VENDOR_TOML + '[framework.numpy]\ndevice = "acme"\nbackend = "acl"\n')
    catalog, numpy = Catalog.scan([tmp_path]), {"case": "toy:numpy:X9:1:1:1", "scale": "small"}
    values = of(catalog, "learning_rate=0.5", **numpy).values
    assert values["learning_rate"].value == 0.5
    assert "compile" not in values
    assert problems_of(catalog, "channels_last=True", **numpy) == [
        "--set channels_last: toy:numpy has no such key; only suites of pytorch have it"
    ]
    own = resolved(tmp_path, settings=("channels_last=True",)).values["parallel"]
    assert own.file == "flagperf_driver/pytorch/defaults.py"


def test_no_key_is_defined_for_all_frameworks_and_for_one() -> None:
    common = load(DEFAULTS).names.keys() - {"MUTABLE"}
    files = [file for file in sorted(DEFAULTS.parent.glob("*/defaults.py")) if file.parent.name != "measuring"]
    assert files
    assert [common & load(file).names.keys() for file in files] == [set() for _ in files]


def test_the_small_scale_has_no_vendor_layer_and_none_overrides(tmp_path: Path) -> None:
    values = resolved(tmp_path, "width = 128", scale="small").values
    assert (values["width"].value, values["width"].layer) == (8, "scale")
    assert values["max_steps"].value == 20
    values = resolved(tmp_path, "width = None\nmax_steps = None\nanything = 3").values
    assert (values["width"].value, values["width"].layer) == (None, "vendor")
    assert values["max_steps"].layer == "vendor"
    assert values["anything"].value == 3


def test_the_harness_sets_the_cases_own_keys_and_no_value_is_shared(tmp_path: Path) -> None:
    given = {"data_dir": Value("/data", "--data-dir", 0, "case")}
    values = of(tree(tmp_path, 'vendor = "other"\n'), given=given).values
    assert (values["vendor"].value, values["data_dir"].where) == ("acme", "--data-dir")
    config = resolved(tmp_path, 'layers = [1, (2, 3)]\nnames = {"a": layers}').config
    config["layers"].append(5)
    assert config["names"] == {"a": [1, [2, 3]]}
    json.dumps(config)


def test_settings_are_literals_or_strings() -> None:
    given = parse_settings(["a=1", "b=[1, 2]", "c=hello", "d=None", "e=x=y", "f="])
    assert {key: value.value for key, value in given.items()} == {
        "a": 1, "b": [1, 2], "c": "hello", "d": None, "e": "x=y", "f": "",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        parse_settings(["a", "=3", "a b=3", "ok=1"])
    assert len(caught.value.problems) == 3


def test_expressions_of_names_above_are_evaluated(tmp_path: Path) -> None:
    text = """\
import math
_half = 0.5
width: int = 64
ratio = (width // 32 - 1) * _half + -1 / 4
layers = [width, width * 2] + [3] + [4]
copied = layers
note = "more and " + "more"
names = {"a": layers, "b": (1, None)}
anything = flag = True
width = width + 2

def double(n):
    return n * 2
"""
    file = write(tmp_path, "a.py", text)
    names = load(file).names
    assert {name: (given.value, given.line) for name, given in names.items()} == {
        "ratio": (0.25, 4), "layers": ([64, 128, 3, 4], 5), "copied": ([64, 128, 3, 4], 6),
        "note": ("more and more", 7), "names": ({"a": [64, 128, 3, 4], "b": (1, None)}, 8), "anything": (True, 9),
        "flag": (True, 9), "width": (66, 10),
    }  # fmt: skip
    assert list(names)[-1] == "width", "in the order of the last assignment"


def test_values_of_neighbours_keep_their_own_lines(tmp_path: Path) -> None:
    write_config(tmp_path, "width = 7\n\nratio = 0.1\nnote = 'common'\n", "config_common.py")
    write_config(tmp_path, "flag_there = True\nunused = 1\n", "more.py")
    text = """\
from config_common import *
from more import (
    flag_there as flag,
)
from config_common import width
layers = [width]
note = note + "!"
"""
    values = resolved(tmp_path, text).values
    folder = "vendors/acme/toy-pytorch/config/"
    assert {key: (values[key].value, values[key].where) for key in ("width", "ratio", "flag", "layers", "note")} == {
        "width": (7, f"{folder}config_common.py:1"),
        "ratio": (0.1, f"{folder}config_common.py:3"),
        "flag": (True, f"{folder}more.py:1"),
        "layers": ([7], f"{CONFIG}:6"),
        "note": ("common!", f"{CONFIG}:7"),
    }


def test_neighbours_are_imported_from_their_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "_base.py", "a = 1\n_b = 2\n")
    file = write(tmp_path, "main.py", "from ._base import *\nfrom ._base import _b as b\n")
    assert {name: (given.value, Path(given.file).name) for name, given in load(file).names.items()} == {
        "a": (1, "_base.py"),
        "b": (2, "_base.py"),
    }


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("from ..up import *", "from ..up import *: no up.py in config/; import the names one by one, or add the file"),
        ("from .common import more", "from .common import more: no name 'more' in common.py"),
        ("from torch import *", "from torch import *: no torch.py in config/;"),
    ],
)
def test_an_import_that_hides_its_names_is_refused(tmp_path: Path, statement: str, problem: str) -> None:
    write_config(tmp_path, "width = 7\n", "common.py")
    (found,) = problems(tmp_path, f"width = 1\n{statement}\n")
    assert found.startswith(f"{CONFIG}:2: {problem}")


@pytest.mark.parametrize("statement", ["import torch", "from torch.nn import Module", "from ..up import x"])
def test_an_import_is_not_followed_and_its_names_have_no_value(tmp_path: Path, statement: str) -> None:
    assert resolved(tmp_path, f"{statement}\nwidth = 1\n").config["width"] == 1
    (problem,) = problems(tmp_path, f"{statement}\nfrom os import sep as width\n")
    assert problem.startswith(f"{CONFIG}:2: width: <from os import sep as width> has no value here: config files are")


def test_files_that_import_each_other_in_a_circle_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "from b import *\n")
    write(tmp_path, "b.py", "from a import *\n")
    with pytest.raises(ConfigError, match="circle: a -> b -> a"):
        load(tmp_path / "a.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width = 1\nratio = = 2\n", f"{CONFIG}:2: invalid Python: "),
        ("width = 1\nratio = 1 / 0\n", f"{CONFIG}:2: ratio: '1 / 0': division by zero: config files are read, not run"),
        ("ratio = widht\n", f"{CONFIG}:1: ratio: no name 'widht' is assigned above: config files are read, not run"),
        ("width = {1}\n", f"{CONFIG}:1: width: '{{1}}' is not evaluated: config files are read, not run"),
        ("ratio = 1 + scale('secret')\n", f"{CONFIG}:1: ratio: \"scale('...')\" is not evaluated: config files are"),
        ("width = True + 1\n", f"{CONFIG}:1: width: arithmetic with a bool: config files are read"),
        ("width = 9" + "0" * 30 + "\n", f"{CONFIG}:1: width: got a number of more than 63 bits: config files are read"),
        ("width = 7 ** 7 ** 9\n", f"{CONFIG}:1: width: '7 ** 7 ** 9' is not evaluated: config files are read"),
        ("names = {**{}}\n", f"{CONFIG}:1: names: '**' in a dict is not evaluated"),
        ("width = 1\nwidth += 1\n", f"{CONFIG}:2: width += 1: config files are read, not run; expected assignments to"),
        ("ratio = 1e308 * 10\n", f"{CONFIG}:1: ratio = inf: expected a finite number"),
        ("import os\nratio = os\n", f"{CONFIG}:2: ratio: 'os' is <import os>: config files are read, not run"),
        ("_a = f()\nratio = _a + 1\n", f"{CONFIG}:1: ratio: 'f()' is not evaluated: config files are read"),
        ("\n\nimport sys; sys.exit(3)\n", f"{CONFIG}:3: sys.exit(3): config files are read, not run; expected assign"),
        ("if True:\n    width = 1\n", f"{CONFIG}:1: if True: config files are read, not run; expected assignments to"),
        ("width, note = 1, 'a'\n", f"{CONFIG}:1: width, note = (1, '...'): config files are read, not run; expected"),
        ("layers = []\nlayers[0] = 1\n", f"{CONFIG}:2: layers[0] = 1: config files are read, not run; expected"),
        ("__all__ = []\n", f"{CONFIG}:1: __all__ = []: config files are read, not run; expected assignments"),
        ("names = {1: 2}\n", f"{CONFIG}:1: names = {{1: 2}}: expected a dict with strings as keys"),
        ("note = 'x' * 100000000\n", f"{CONFIG}:1: note: arithmetic with a str"),
        ("layers = [0] * 10000000000\n", f"{CONFIG}:1: layers: arithmetic with a list"),
        ("layers = [1]\n" + "layers = [layers, layers, layers]\n" * 20, f"{CONFIG}:14: layers: the file's values are"),
        ("note = 'xxxxxxxxxx'\n" + "note = note + note + note\n" * 20, f"{CONFIG}:11: note: the file's values are too"),
        ("width = 1\n" * MAX_BYTES, f"{CONFIG}: cannot be read: the file is larger than 1 MiB"),
    ],
)
def test_an_invalid_file_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text)[0].startswith(message)


def test_all_problems_are_reported_at_once_with_their_own_line(tmp_path: Path) -> None:
    text = 'widht = 1\nfrozen = 4\nratio = "big"\ntarget_top1 = 0.5\n'
    assert problems(tmp_path, text, ("flag=3", "frzen=1")) == [
        f"{CONFIG}:1: widht: toy:pytorch has no such key; did you mean width?",
        f"{CONFIG}:2: frozen = 4: cannot be set here: it is not in mutable_params",
        f"{CONFIG}:3: ratio = 'big': is 'big'; expected a number or None",
        f"{CONFIG}:4: target_top1 = 0.5: expected the suite's target 0.75 at scale reference (suite.toml); "
        "a config cannot change the target",
        "--set flag=3: is 3; expected True or False or None",
        "--set frzen: toy:pytorch has no such key; did you mean frozen?",
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("width=1.0", "is 1.0; expected a whole number or None; write 1"),
        ("width=True", "is True; expected a whole number"),
        ("flag=1", "expected True or False"),
        ("note=3", "expected a string"),
        ("layers=3", "expected a list"),
        ("names=[]", "expected a dict"),
        ("learning_rate=None", "is None; expected a number"),
        ("learning_rate=nan", "is 'nan'; expected a number"),
        ("learning_rate=1e999", "expected a finite number"),
        ("max_steps=-1", "expected at least 0"),
        ("hang_timeout_s=-0.5", "expected at least 0"),
        ("min_efficiency=0", "expected more than 0 and at most 1.5"),
        ("min_efficiency=1.6", "expected more than 0 and at most 1.5"),
        ("precision=bf61", "expected 'fp32' or 'tf32' or 'bf16' or 'fp16'; did you mean bf16"),
        ("max_steps=ten", "is 'ten'; expected a whole number or None"),
        ("train_batch_size=0", "expected at least 1"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(tmp_path: Path, setting: str, message: str) -> None:
    (problem,) = problems(tmp_path, settings=(setting,))
    assert message in problem
    assert problem.startswith(f"--set {setting}: ")


@pytest.mark.parametrize("name", ["target", "target_top1"])
def test_the_target_may_be_repeated_but_not_changed(tmp_path: Path, name: str) -> None:
    assert name not in resolved(tmp_path, f"{name} = 0.75").values
    for config, settings in ((f"{name} = 0.74", ()), ("", (f"{name}=0.1",)), (f"{name} = None", ())):
        assert "expected the suite's target 0.75" in problems(tmp_path, config, settings)[0]


def test_a_small_scales_file_and_mutable_params_must_name_keys_that_exist(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    write(tmp_path, "suites/toy/pytorch/config/_small.py", "frozen = 9\nwdth = 8\n")
    assert problems_of(catalog, scale="small") == [
        "suites/toy/pytorch/config/_small.py:2: wdth: toy:pytorch has no such key; did you mean width?"
    ]
    catalog = tree(tmp_path)
    file = "suites/toy/pytorch/config/mutable_params.py"
    write(tmp_path, file, MUTABLE.replace('"width"', '"widht"'))
    message = problems_of(catalog)
    assert f"{file}:1: mutable_params contains 'widht': toy:pytorch has no such key; did you mean width?" in message
    write(tmp_path, file, "mutable_params = 'width'")
    assert "expected a list of keys" in problems_of(catalog)[0]


def test_a_suite_may_allow_further_values_of_a_key_that_every_suite_has(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    expected = "expected True or False"
    assert expected in problems_of(catalog, "checkpoint_activations=selective")[0]
    own = 'checkpoint_activations: bool | Literal["selective"] = False\n'
    write(tmp_path, "suites/toy/pytorch/config/_base.py", BASE + own)
    assert of(catalog, "checkpoint_activations=selective").values["checkpoint_activations"].value == "selective"
    assert of(catalog, "checkpoint_activations=True").values["checkpoint_activations"].value is True
    assert "expected 'selective' or True or False" in problems_of(catalog, "checkpoint_activations=some")[0]


def test_a_suite_may_fix_keys_that_every_suite_may_change(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    assert of(catalog, "beta1=0.8").values["beta1"].value == 0.8
    file = "suites/toy/pytorch/config/mutable_params.py"
    write(tmp_path, file, MUTABLE + 'fixed_params = ["beta1", "beat2"]\n')
    assert problems_of(catalog, "beta1=0.8") == [
        f"{file}:2: fixed_params contains 'beat2': toy:pytorch has no such key; did you mean beta2 or beta1?",
        "--set beta1=0.8: cannot be set here: the suite fixes it (fixed_params in mutable_params.py)",
    ]


def test_a_missing_required_key_and_a_missing_base_are_reported(tmp_path: Path) -> None:
    catalog = tree(tmp_path)
    defaults = write(tmp_path, "driver/defaults.py", 'MUTABLE = []\nvendor = ""\n')
    assert "suites/toy/pytorch/config/_base.py: data_dir is missing; set a value" in problems_of(
        catalog, defaults=defaults
    )
    catalog = tree(tmp_path)
    (tmp_path / "suites/toy/pytorch/config/_base.py").unlink()
    assert "suites/toy/pytorch/config/_base.py: no such file" in problems_of(catalog)


def data_problems(root: Path, data_dir: object, config: str = "", scale: str = "reference") -> list[str]:
    given = {"data_dir": Value(data_dir, "--data-dir", 0, "case")}
    try:
        of(tree(root, config), scale=scale, given=given, check_data=True)
    except ConfigError as error:
        return error.problems
    return []


def test_missing_data_are_reported_with_the_line_that_sets_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert data_problems(tmp_path, str(data)) == [
        f"suites/toy/pytorch/config/_base.py:1: train_data = 'train': {data}/train does not exist"
    ]
    (data / "train").mkdir()
    assert data_problems(tmp_path, str(data)) == []
    assert data_problems(tmp_path, "/not/there") == ["--data-dir: data_dir = '/not/there': no such folder"]
    assert data_problems(tmp_path, "") == [
        "toy:pytorch needs its data at scale reference: pass their folder with --data-dir or --case CASE=DATA_DIR "
        "(suites/toy/pytorch/README.md lists the required files), or measure only throughput with --synthetic"
    ]
    assert data_problems(tmp_path, "", scale="small") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("min_efficiency = 0.01", "expected at least 0.85; a vendor's config may ask for more"),
        ("throughput_steps = 5", "expected at least 50; a vendor's config may ask for more"),
        ("timing_warmup_steps = 51", "expected at most 50 in a vendor's config"),
        ("log_freq = 101", "expected at most 100 in a vendor's config"),
        ("throughput_only = True", "expected the suite's False; a vendor's config cannot choose how a case is judged"),
        ("parity_samples = 64", "expected the suite's None; a vendor's config cannot choose how a case is judged"),
        ('scaling = "strong"', "expected the suite's 'weak'; a vendor's config cannot choose how a case is judged"),
        ('checkpoint_dir = "trained"', "expected the suite's None; a vendor's config cannot continue"),
        ('init_checkpoint = "x.pt"', "expected the suite's None; a vendor's config "),
        ('train_data = "tiny"', "expected the suite's 'train'"),
        ('data_dir = "easy"', "expected the suite's ''; a vendor's config cannot choose the data"),
    ],
)
def test_a_vendors_config_lowers_no_bound(tmp_path: Path, line: str, message: str) -> None:
    (problem,) = problems(tmp_path, f"{line}\n")
    assert problem.replace("'", '"').startswith(f"{CONFIG}:1: {line}: {message}".replace("'", '"'))


def test_a_measurement_has_keys_of_its_own_and_a_vendor_shortens_no_point(tmp_path: Path) -> None:
    write(tmp_path, "suites/machine/pytorch/config/_base.py", "sizes = [1]\n")
    write(tmp_path, "suites/machine/pytorch/suite.toml", PLAIN_MEASUREMENT_TOML)
    write_vendor(tmp_path)
    case = "machine:pytorch:X9:1:8:1"
    assert "learning_rate" not in of(Catalog.scan([tmp_path]), case=case).config
    write_config(tmp_path, "point_most_s = 9.0\n", folder="machine-pytorch")
    assert of(Catalog.scan([tmp_path]), "point_least_s=0.1", case=case).config["point_least_s"] == 0.1
    for text, message in [
        ("point_least_s = 0.5\n", "point_least_s = 0.5: expected at least 1.0"),
        ("point_interval = 0.02\n", "point_interval = 0.02: expected at most 0.01"),
        ("learning_rate = 1.0\n", "learning_rate: machine:pytorch has no such key"),
        ("target = 1.0\n", "target = 1.0: a measurement has no target; remove the key"),
    ]:
        write_config(tmp_path, text, folder="machine-pytorch")
        assert message in problems_of(Catalog.scan([tmp_path]), case=case)[0]


def test_a_vendors_config_may_ask_for_more_and_the_user_for_all_that_the_types_and_limits_allow(tmp_path: Path) -> None:
    text = "min_efficiency = 0.9\nthroughput_steps = 100\ntiming_warmup_steps = 20\n"
    values = resolved(tmp_path, text, settings=("throughput_steps=5",)).config
    assert (values["min_efficiency"], values["throughput_steps"], values["timing_warmup_steps"]) == (0.9, 5, 20)
    limits = ("max_steps=0", "min_efficiency=1.5", "hang_timeout_s=0.5", "num_workers=0", "max_time_s=None")
    fine = resolved(tmp_path, settings=(*limits, "ratio=1", "layers=(1, 2)", "anything=x")).config
    assert [fine[key] for key in ("max_steps", "ratio", "layers", "anything")] == [0, 1, [1, 2], "x"]


@pytest.mark.parametrize("name", ["_base.py", "mutable_params.py"])
def test_only_the_invalid_file_is_reported(tmp_path: Path, name: str) -> None:
    catalog = tree(tmp_path, "width = 128\n")
    write(tmp_path, f"suites/toy/pytorch/config/{name}", "width = = 3\n")
    assert [problem.partition(" invalid")[0] for problem in problems_of(catalog, "ratio=0.1")] == [
        f"suites/toy/pytorch/config/{name}:1:"
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("checkpoint_steps=5",), "--set checkpoint_steps=5: a checkpoint needs a folder; pass --set=checkpoint_dir="),
        (("failure_interval_s=60",), "--set failure_interval_s=60: a checkpoint needs a folder"),
        (("checkpoint_steps=5", "checkpoint_dir=saved"), "--set checkpoint_dir=saved: expected an absolute path"),
    ],
)
def test_checkpoints_need_a_folder_that_stays(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    (problem,) = problems(tmp_path, settings=settings)
    assert problem.startswith(message)
    assert resolved(tmp_path, settings=("checkpoint_steps=5", "checkpoint_dir=/saved")).config["checkpoint_steps"] == 5


EVERY = "eval_samples = 2000\n"


def evaluations(root: Path, *settings: str, base: str = EVERY) -> Resolved:
    """Resolve a config at 1x8 with a batch of 32; the suite requires an evaluation every 2,000 samples, or 7 steps."""
    catalog = tree(root)
    write(root, "suites/toy/pytorch/config/_base.py", BASE + base)
    return of(catalog, *settings)


@pytest.mark.parametrize(
    ("base", "settings", "every", "start"),
    [
        (EVERY, (), 7, 0),
        (EVERY + "eval_steps = 500\neval_start_steps = 100\n", (), 7, 7),
        (EVERY + "eval_steps = 3\neval_start_steps = 5\n", (), 3, 3),
        (EVERY, ("eval_steps=7", "eval_start_steps=7"), 7, 7),
        (EVERY, ("train_batch_size=125",), 2, 0),
        (EVERY, ("gradient_accumulation_steps=7",), 1, 0),
        ("eval_steps = 500\n", (), 500, 0),
        ("", ("eval_steps=60",), 60, 0),
    ],
)
def test_a_suite_evaluates_often_enough_at_any_shape_and_batch(
    tmp_path: Path, base: str, settings: tuple[str, ...], every: int, start: int
) -> None:
    config = evaluations(tmp_path, *settings, base=base)
    assert (config.config["eval_steps"], config.config["eval_start_steps"]) == (every, start)
    assert {deviation.key for deviation in config.deviations} == {text.partition("=")[0] for text in settings}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("eval_steps=8", "8 steps are 2,048 samples; the suite requires an evaluation every 2,000 samples"),
        ("eval_steps=0", "no fixed interval"),
        ("eval_start_steps=8", "expected 0 to 7 steps"),
        ("eval_samples=9000", "cannot be set here"),
    ],
)
def test_a_case_cannot_evaluate_less_often_than_the_suite_requires(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        evaluations(tmp_path, setting)
