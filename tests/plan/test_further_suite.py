"""A measurement whose config names a training: its ranks get the code and the config of the training."""

import io
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.engines.agents.environments import Environments
from pytest_flagperf.plan import Plan, PlanRequest, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.settings import read_settings
from tests.helpers.trees import PLAIN_MEASUREMENT_TOML, tree, write

OF_CASE = 'of = "toy:pytorch"\ncase_settings: list[str] = []\ncase_config: dict[str, object] = {}\n'


def planned(root: Path, *settings: str, scale: str = "reference", variant: str = "") -> Plan:
    write(root, "suites/machine/pytorch/suite.toml", f'case_key = "of"\n{PLAIN_MEASUREMENT_TOML}')
    write(root, "suites/machine/pytorch/config/_base.py", OF_CASE)
    write(root, "suites/machine/pytorch/config/_small.py", "")
    write(root, "suites/machine/pytorch/config/mutable_params.py", 'mutable_params = ["of", "case_settings"]\n')
    request = PlanRequest(Case.parse(f"machine:pytorch:X9:1:8:1{variant}"), "acme", scale=scale, settings=settings)
    return make_plan(Catalog.scan([root]), request)


def test_ranks_get_the_config_of_the_training_for_their_shape(tmp_path: Path) -> None:
    tree(tmp_path, "width = 128\n")  # the vendor's, for 1x8
    config: Any = planned(tmp_path, 'case_settings=["ratio=0.25"]').config
    assert (config["of"], config["case_config"]["width"], config["case_config"]["ratio"]) == (
        "toy:pytorch:1x8",
        128,
        0.25,
    )
    other: Any = planned(tmp_path, "of=toy:pytorch:2x8").config
    assert (other["of"], other["case_config"]["width"]) == ("toy:pytorch:2x8", 64), "a vendor without a config for it"
    small: Any = planned(tmp_path, scale="small").config
    assert small["case_config"]["width"] == 8
    swept: Any = planned(tmp_path, variant=":of-toy+point_most_s-4.0").config
    assert (swept["of"], swept["point_most_s"]) == ("toy:pytorch:1x8", 4.0)
    assert swept["case_config"] == config["case_config"] | {"ratio": 0.5}


def test_ranks_get_the_code_of_the_training_and_its_changes_are_another_case(tmp_path: Path) -> None:
    tree(tmp_path)
    before = planned(tmp_path)
    write(tmp_path, "suites/toy/pytorch/model.py", "")
    after, other = planned(tmp_path), planned(tmp_path, "of=toy:pytorch:1x1")
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
        planned(tmp_path, setting)
    assert message in str(error.value)
