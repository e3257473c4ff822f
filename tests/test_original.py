"""FlagPerf's test_conf.py."""

from pathlib import Path

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.original import OriginalError, TestConf, read_test_conf
from pytest_flagperf.problems import Problems
from tests.helpers.trees import write

# In the form of FlagPerf's file: comments, expressions with earlier names, a string in between, None.
CONF = '''\
"""Test Configs, including"""
# -*-coding:utf-8 -*-
VENDOR = "acme"
ACCE_CONTAINER_OPT = " --device=/dev/a0" + \\
                     " --device=/dev/a1"
ACCE_VISIBLE_DEVICE_ENV_NAME = None
PIP_SOURCE = "https://mirror.example/simple"
FLAGPERF_PATH = "/opt/there"
FLAGPERF_LOG_PATH = FLAGPERF_PATH + "/result/"
FLAGPERF_LOG_LEVEL = 'debug'
SHM_SIZE = "32G"
CLEAR_CACHES = False
"""
    "model:framework:hardwareID:nnodes:nproc:repeat": "dataset path"}
"""
CASES = {
    # "glm:pytorch:X9:1:8:1": "/data/other/",
    "bert:pytorch_1.8:X9:1:8:1": "/data/bert/",
    "glm:pytorch:X9:2:8:3": "",
}
'''


ONE = "CASES = {'glm:pytorch:X9:1:8:1': ''}\n"


def conf(root: Path, text: str) -> TestConf:
    return read_test_conf(write(root, "test_conf.py", text))


def problems(root: Path, text: str) -> list[str]:
    with pytest.raises(Problems) as caught:
        conf(root, text)
    return [problem.removeprefix(f"{root}/") for problem in caught.value.problems]


def test_cases_have_their_data_and_lines_and_options_our_names(tmp_path: Path) -> None:
    cases = conf(tmp_path, CONF).cases
    assert [(str(one.case), one.data_dir, one.where) for one in cases] == [
        ("bert:pytorch_1.8:X9:1:8:1", "/data/bert", f"{tmp_path}/test_conf.py:18"),
        ("glm:pytorch:X9:2:8:3", None, f"{tmp_path}/test_conf.py:19"),
    ]
    test_conf = conf(tmp_path, CONF)
    assert test_conf.settings == {
        "vendor": "acme",
        "reports": "/opt/there/result",
        "pip_source": "https://mirror.example/simple",
        "container_opt": ("--device=/dev/a0 --device=/dev/a1",),
        "shm_size": "32G",
    }
    assert test_conf.where("VENDOR") == f"{tmp_path}/test_conf.py:3"
    assert conf(tmp_path, 'CASES = {"glm:pytorch:X9:1:8:1": ""}\nVENDOR = ""\n').settings == {}


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = 'FLAGPERF_LOG_PATH = "logs"\nCASES = {"glm:pytorch:X9:1:8:1": "data", "glm:pytorch:X9:1:1:1": "~/there"}\n'
    test_conf = read_test_conf(write(tmp_path, "there/test_conf.py", text))
    assert [one.data_dir for one in test_conf.cases] == [f"{tmp_path}/there/data", str(Path("~/there").expanduser())]
    assert test_conf.settings["reports"] == f"{tmp_path}/there/logs"


def test_names_without_effect_and_unknown_names_are_noted(tmp_path: Path) -> None:
    notes = [line.removeprefix(f"{tmp_path}/test_conf.py:") for line in conf(tmp_path, CONF).without_effect]
    assert [line.partition(":")[0] for line in notes] == ["8"]
    assert "FLAGPERF_PATH has no effect: the code is copied" in notes[0]
    assert conf(tmp_path, ONE).without_effect == []
    (message,) = conf(tmp_path, f"import os\n_mine = 1\n{ONE}VENDER = 'a'\n").without_effect
    assert "test_conf.py:4: VENDER is not a setting" in message
    assert message.endswith("did you mean VENDOR?")


def test_all_invalid_cases_are_reported_at_once(tmp_path: Path) -> None:
    text = """\
VENDOR = 3
CLEAR_CACHES = "yes"
CASES = {
    "glm:pytorch:X9:1:8:1:extra": "/data",
    "glm:pytorch:X9:0:8:1": "/data",
    "glm:pytorch:X9:1:8:1": "/one",
    "glm:pytorch:X9:1:8:1": "/two",
    "glm:pytorch:X9:1:1:1": 7,
}
"""
    assert [problem.partition(" case ")[0].partition(": expected")[0] for problem in problems(tmp_path, text)] == [
        "test_conf.py:1: VENDOR", "test_conf.py:2: CLEAR_CACHES", "test_conf.py:7:", "test_conf.py:4:",
        "test_conf.py:5:", "test_conf.py:8: the data directory of",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("VENDOR = 'a'\nCASES = {1/0: ''}\n", "test_conf.py:2: CASES: '1 / 0': division by zero"),
        ("CASES = {\n", "test_conf.py:1: invalid Python: '{' was never closed"),
        ("VENDOR = 'a'\n", "test_conf.py: CASES is missing"),
        ("CASES = ['glm:pytorch:X9:1:8:1']\n", "test_conf.py:1: CASES: expected a dict"),
        ("VENDOR = 'a'\nCASES = {}\n", "test_conf.py:2: CASES contains no case"),
        ("import sys\nsys.exit()\n", "test_conf.py:2: sys.exit(): config files are read, not run"),
        (f"FLAGPERF_LOG_LEVEL = 'debg'\n{ONE}", "test_conf.py:1: FLAGPERF_LOG_LEVEL is 'debg'; expected debug, info"),
        (f"FLAGPERF_LOG_PATH = {'x' * 300!r}\n{ONE}", "test_conf.py:1: FLAGPERF_LOG_PATH is 'xxx"),
        ("CASES = None\n", "test_conf.py:1: CASES: expected a dict"),
    ],
)
def test_an_invalid_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text)[0].startswith(message)


def test_names_above_may_be_a_part_of_cases_and_a_missing_file_is_a_users_problem(tmp_path: Path) -> None:
    with pytest.raises(Problems, match=r"no_such\.py: cannot be read"):
        read_test_conf(tmp_path / "no_such.py")
    text = "DATA = '/data'\nCASES = {'glm:pytorch:X9:' + '1:8:1': DATA + '/glm'}\n"
    (case,) = conf(tmp_path, text).cases
    assert (case.case, case.data_dir) == (Case("glm", "pytorch", "X9", 1, 8), "/data/glm")
    assert case.where.endswith("test_conf.py:2")
    assert issubclass(OriginalError, Problems)
