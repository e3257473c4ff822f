"""FlagPerf's base/configs/host.yaml."""

from pathlib import Path

import pytest
import yaml

from pytest_flagperf import host_yaml
from pytest_flagperf.catalog import Catalog
from pytest_flagperf.original import TestConf, read_cluster_conf, read_test_conf
from pytest_flagperf.problems import Problems
from tests.helpers import published
from tests.helpers.trees import write

PUBLISHED = published.files()["base/configs/host.yaml"]
CASES = 'HOSTS: ["h1", "h2"]\nNPROC_PER_NODE: 8\nCASES: \n     "computation-BF16:A100": "pytorch_2.3"\n'


def conf(root: Path, text: str) -> TestConf:
    return read_test_conf(write(root, "host.yaml", text))


def problems(root: Path, text: str) -> list[str]:
    with pytest.raises(Problems) as caught:
        conf(root, text)
    return [problem.removeprefix(f"{root}/host.yaml") for problem in caught.value.problems]


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
    test_conf = conf(tmp_path, PUBLISHED)
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
    assert [(str(named.case), named.where.rpartition(":")[2]) for named in conf(tmp_path, text).cases] == [
        ("computation-BF16:pytorch_2.3:A100:2:8:1", "4"),
        ("interconnect-MPI_intraserver:pytorch_2.3:X9:1:8:1", "5"),
        ("interconnect-MPI_interserver:pytorch_2.3:X9:2:8:1", "6"),
    ]


def test_a_program_of_the_vendor_cannot_run(tmp_path: Path) -> None:
    (named,) = conf(tmp_path, CASES + "BENCHMARKS_OR_TOOLKITS: TOOLKIT\n").cases
    assert "a program of the vendor's, which does not run here; set BENCHMARK" in str(named.unsupported)


ORIGINALS = [
    *(f"computation-{name}" for name in ("FP64", "FP32", "TF32", "FP16", "BF16", "FP8", "INT8")),
    "main_memory-bandwidth", "main_memory-capacity", "interconnect-h2d",
    *(f"interconnect-{name}server" for name in ("MPI_intra", "MPI_inter", "P2P_intra", "P2P_inter")),
]  # fmt: skip
"""All cases of FlagPerf's base."""


@pytest.mark.parametrize("name", ORIGINALS)
def test_each_case_of_flagperf_is_a_figure_of_a_suite(name: str) -> None:
    assert Catalog.scan([published.REPO]).figure_of(name, "pytorch") is not None


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
def test_an_invalid_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text)[0].startswith(message)
