"""FlagPerf's test_conf.py, and base/configs/host.yaml."""

from pathlib import Path

import pytest
import yaml

from pytest_flagperf import host_yaml
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.original import OriginalError, TestConf, read_cluster_conf, read_test_conf
from pytest_flagperf.problems import Problems
from tests.helpers import published
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


def conf(root: Path, text: str, name: str = "test_conf.py") -> TestConf:
    return read_test_conf(write(root, name, text))


def problems(root: Path, text: str, name: str = "test_conf.py") -> list[str]:
    with pytest.raises(Problems) as caught:
        conf(root, text, name)
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


PUBLISHED = published.files()["base/configs/host.yaml"]
CASES = 'HOSTS: ["h1", "h2"]\nNPROC_PER_NODE: 8\nCASES: \n     "computation-BF16:A100": "pytorch_2.3"\n'


@pytest.mark.parametrize(
    "text",
    [
        PUBLISHED, CASES, "A: x#y # z", "A: 'it''s' # c", 'A: "a\\"b, [c]"', "A: [a, 'b, c', 3,]  # c", "A: []", "A: ~",
        "A:", "A: -5", "A: yes", "A: --device=/dev/a,/dev/b", "A: -v x:y", "A: a:b", "A: 10.0.0.2",
        "---\nA: x y\n# c\n\nB: 32G", "A:\n  - x\n  - 2\nB: 1", "A:\n- x", "A:\n  'a:b': c\n  d:\n  e-f: 3",
    ],
)  # fmt: skip
def test_the_yaml_of_such_files_is_read_as_a_yaml_reader_reads_it(tmp_path: Path, text: str) -> None:
    names = host_yaml.load(write(tmp_path, "host.yaml", text)).names
    assert {name: given.value for name, given in names.items()} == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    [
        "A: 'x", "A: [a", "A: [[a]]", "A: [a] x", "A: 'x' y", "a", "A: 1\nB", "A: *y", "A: !!python/name:os.system",
        "? [a]",
    ],
)  # fmt: skip
def test_other_yaml_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(Problems, match=rf"host\.yaml:{text.count(chr(10)) + 1}: expected NAME: value"):
        host_yaml.load(write(tmp_path, "host.yaml", text))


def test_the_published_file_has_the_options_of_both_files_and_its_case(tmp_path: Path) -> None:
    test_conf = conf(tmp_path, PUBLISHED, "host.yaml")
    assert test_conf.settings == {
        "vendor": "nvidia", "reports": f"{tmp_path}/result", "pip_source": "https://pypi.example/simple",
        "container_opt": ("--gpus all",), "shm_size": "32G", "clear_caches": True,
        "cluster_conf": f"{tmp_path}/host.yaml",
    }  # fmt: skip
    assert test_conf.value("ACCE_VISIBLE_DEVICE_ENV_NAME") == "CUDA_VISIBLE_DEVICES"
    assert [str(named.case) for named in test_conf.cases] == ["computation-FP32:pytorch_2.3:A100:2:8:1"]
    cluster = read_cluster_conf(tmp_path / "host.yaml")
    assert (cluster.hosts, cluster.port) == (("192.168.1.2", "192.168.1.3"), 22)
    assert [note.partition(" has")[0].rpartition(" ")[2] for note in cluster.without_effect] == [
        "MASTER_PORT",
        "HOSTS_PORTS",
    ]


def test_a_case_within_a_host_has_one_host(tmp_path: Path) -> None:
    names = ("interconnect-MPI_intraserver", "interconnect-MPI_interserver")
    text = CASES + "".join(f'     "{name}:X9": "pytorch_2.3"\n' for name in names)
    assert [(str(named.case), named.where.rpartition(":")[2]) for named in conf(tmp_path, text, "host.yaml").cases] == [
        ("computation-BF16:pytorch_2.3:A100:2:8:1", "4"),
        ("interconnect-MPI_intraserver:pytorch_2.3:X9:1:8:1", "5"),
        ("interconnect-MPI_interserver:pytorch_2.3:X9:2:8:1", "6"),
    ]


def test_a_program_of_the_vendor_cannot_run(tmp_path: Path) -> None:
    (named,) = conf(tmp_path, CASES + "BENCHMARKS_OR_TOOLKITS: TOOLKIT\n", "host.yaml").cases
    assert "a program of the vendor's, which does not run here; set BENCHMARK" in str(named.unsupported)


def test_each_case_of_flagperfs_base_is_a_figure_of_a_suite() -> None:
    names = [
        *(f"computation-{name}" for name in ("FP64", "FP32", "TF32", "FP16", "BF16", "FP8", "INT8")),
        "main_memory-bandwidth", "main_memory-capacity", "interconnect-h2d",
        *(f"interconnect-{name}server" for name in ("MPI_intra", "MPI_inter", "P2P_intra", "P2P_inter")),
    ]  # fmt: skip
    catalog = Catalog.scan([published.REPO])
    assert [name for name in names if catalog.figure_of(name, "pytorch") is None] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HOSTS: [h1]\nNPROC_PER_NODE: 8\nCASES:\n", ":3: CASES: expected entries such as"),
        ("HOSTS: [h1]\nCASES:\n  a: b\n", ": NPROC_PER_NODE is missing"),
        (CASES.replace("8", "eight"), ":2: NPROC_PER_NODE: expected a whole number; got 'eight'"),
        (CASES.replace("8", ""), ":2: NPROC_PER_NODE: expected a whole number; got None"),
        (CASES.replace("8", "0"), ":4: 'computation-BF16:A100': case 'computation-BF16:pytorch_2.3:A100:2:0:1'"),
        (CASES + '     "computation-BF16:A100": "x"\n', ":5: 'computation-BF16:A100' is set in lines 4 and 5"),
        (CASES + "HOSTS: [h3]\n", ":5: 'HOSTS' is set in lines 1 and 5; keep one"),
        (CASES + "BENCHMARKS_OR_TOOLKITS: TOOL\n", ":5: BENCHMARKS_OR_TOOLKITS is 'TOOL'; expected BENCHMARK, TOOLKIT"),
        (CASES + "CLEAR_CACHES: 3\n", ":5: CLEAR_CACHES: expected True or False; got 3"),
    ],
)
def test_an_invalid_host_yaml_is_reported(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text, "host.yaml")[0].startswith(f"host.yaml{message}")
