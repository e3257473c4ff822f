"""The processes that a host starts, and their environment variables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flagperf_driver import launch
from flagperf_driver.launch import RESERVED_VARIABLES, HostSetup, RoundHosts, launchers, threads_per_rank

HOSTS = RoundHosts(("10.0.0.1", "10.0.0.2"), 2, "10.0.0.1", 29876)
SETUP = HostSetup("/env/bin/python", "/code/suites/m/f/run_pretraining.py", "/r/case.json", "/r/log", "/code")


def test_launchers_are_the_modules_of_the_folder() -> None:
    assert launch.DEFAULT in launchers()
    files = {path.stem for path in Path(launch.__file__).parent.glob("*.py")}
    assert set(launchers()) == files - {"__init__", "environment"}


def test_a_module_added_to_the_folder_is_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_one.py").write_text("def launch(hosts, noderank, setup): return []\n")
    monkeypatch.setattr(launch, "__path__", [*launch.__path__, str(tmp_path)])
    try:
        assert launchers()["new_one"](HOSTS, 0, SETUP) == []
    finally:
        sys.modules.pop("flagperf_driver.launch.new_one", None)


def test_env_sets_the_variables_of_each_rank() -> None:
    ranks = launchers()["env"](HOSTS, 1, SETUP)
    assert [(process.rank, process.local_rank) for process in ranks] == [(2, 0), (3, 1)]
    assert ranks[1].argv == ("/env/bin/python", "-u", "/code/suites/m/f/run_pretraining.py")
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29876",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "FLAGPERF_CASE": "/r/case.json",
        "FLAGPERF_LOG_DIR": "/r/log",
        "PYTHONPATH": "/code:/code/suites",
    }
    assert dict(ranks[1].env) == expected
    assert expected.keys() | {"TMPDIR"} == RESERVED_VARIABLES


def test_a_rank_reports_for_itself_and_a_launcher_for_all_that_it_starts() -> None:
    assert [process.reports for process in launchers()["env"](HOSTS, 1, SETUP)] == [(2,), (3,)]
    (process,) = launchers()["torchrun"](HOSTS, 1, SETUP)
    assert process.reports == (2, 3)


def test_torchrun_meets_at_the_first_host_and_restarts_nothing() -> None:
    (process,) = launchers()["torchrun"](HOSTS, 1, SETUP)
    assert process.argv[:4] == ("/env/bin/python", "-u", "-m", "torch.distributed.run")
    assert set(process.argv[4:-1]) == {
        "--nnodes=2",
        "--nproc-per-node=2",
        "--node-rank=1",
        "--master-addr=10.0.0.1",
        "--master-port=29876",
        "--max-restarts=0",
    }
    assert process.argv[-1] == SETUP.program
    assert "RANK" not in process.env  # torchrun sets it


def test_only_leased_devices_are_visible() -> None:
    hosts = RoundHosts(("h",), 2, "h", 1, devices=((4, 6),), visible_devices_env="SOME_VISIBLE_DEVICES")
    for name in launchers():
        assert {process.env["SOME_VISIBLE_DEVICES"] for process in launchers()[name](hosts, 0, SETUP)} == {"4,6"}
    hidden = launchers()["env"](RoundHosts(("h",), 1, "h", 1, devices=((4,),)), 0, SETUP)
    assert not any(value == "4" for value in hidden[0].env.values())  # without a variable no device is hidden


def test_each_rank_is_bound_to_its_cores_and_a_launcher_to_those_of_all() -> None:
    setup = HostSetup("python", "p.py", cpus=((3,), (5,)))
    assert [process.cpus for process in launchers()["env"](HOSTS, 0, setup)] == [(3,), (5,)]
    assert [process.cpus for process in launchers()["env"](HOSTS, 0, SETUP)] == [(), ()]
    assert launchers()["torchrun"](HOSTS, 0, setup)[0].cpus == (3, 5)
    assert launchers()["torchrun"](HOSTS, 0, SETUP)[0].cpus == ()


def test_a_launcher_is_not_bound_if_one_of_its_ranks_is_not_bound() -> None:
    setup = HostSetup("python", "p.py", cpus=((4, 5), ()))
    assert [process.cpus for process in launchers()["env"](HOSTS, 0, setup)] == [(4, 5), ()]
    assert launchers()["torchrun"](HOSTS, 0, setup)[0].cpus == ()


@pytest.mark.parametrize(
    ("cores", "nproc", "bound", "threads"),
    [
        (64, 8, [], 8),
        (63, 8, [], 7),
        (2, 8, [], 1),
        (64, 1, [range(32)], 32),  # one rank on one of two NUMA nodes
        (64, 4, [range(32)] * 4, 8),  # all ranks on one NUMA node
        (64, 4, [range(32)] * 3 + [range(32, 64)], 10),
        (64, 2, [range(32), ()], 32),  # the cores near the second device are unknown
        (64, 2, [range(4), ()], 4),
        (64, 8, [range(4)] * 8, 1),
        (64, 2, [(0,), (1,)], 1),  # the devices are cores
    ],
)
def test_threads_share_the_cores(cores: int, nproc: int, bound: list[Sequence[int]], threads: int) -> None:
    assert threads_per_rank(cores, nproc, bound) == threads


@pytest.mark.slow
def test_torchrun_starts_ranks_that_find_each_other(torch_python: str, tmp_path: Path) -> None:
    """Run torchrun with exactly the argv and environment that the launcher returns."""
    program = tmp_path / "meet.py"
    program.write_text(
        "import torch, torch.distributed as d\n"
        "d.init_process_group('gloo')\n"
        "x = torch.ones(1); d.all_reduce(x); print(f'SUM {x.item()}\\n', end='', flush=True)\n"
        "d.destroy_process_group()\n"
    )
    hosts = RoundHosts(("127.0.0.1",), 2, "127.0.0.1", 29871)
    (process,) = launchers()["torchrun"](hosts, 0, HostSetup(torch_python, str(program)))
    environment = {**process.env, "TMPDIR": str(tmp_path)}  # as in a round; torchrun leaves a folder there
    done = subprocess.run(process.argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("SUM 2.0") == 2, done.stderr
    assert list(tmp_path.glob("torchelastic_*"))
