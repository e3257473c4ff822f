"""What a host starts, and with which environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flagperf_driver import launch
from flagperf_driver.launch import OURS, Site, World, launchers, threads_per_rank

WORLD = World(("10.0.0.1", "10.0.0.2"), 2, "10.0.0.1", 29876)
SITE = Site("/env/bin/python", "/code/suites/m/f/run_pretraining.py", "/r/case.json", "/r/log", "/code")


def test_launchers_are_the_modules_of_the_folder() -> None:
    assert launch.DEFAULT in launchers()
    files = {path.stem for path in Path(launch.__file__).parent.glob("*.py")}
    assert set(launchers()) == files - {"__init__", "environment"}


def test_a_module_put_into_the_folder_is_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_one.py").write_text("def launch(world, noderank, site): return []\n")
    monkeypatch.setattr(launch, "__path__", [*launch.__path__, str(tmp_path)])
    try:
        assert launchers()["new_one"](WORLD, 0, SITE) == []
    finally:
        sys.modules.pop("flagperf_driver.launch.new_one", None)


def test_env_gives_each_rank_its_place_in_the_world() -> None:
    ranks = launchers()["env"](WORLD, 1, SITE)
    assert [(each.rank, each.local_rank) for each in ranks] == [(2, 0), (3, 1)]
    assert ranks[1].argv == ("/env/bin/python", "-u", "/code/suites/m/f/run_pretraining.py")
    wanted = {
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
    assert dict(ranks[1].env) == wanted
    assert wanted.keys() | {"TMPDIR"} == OURS


def test_a_rank_reports_for_itself_and_a_launcher_for_all_that_it_starts() -> None:
    assert [each.reports for each in launchers()["env"](WORLD, 1, SITE)] == [(2,), (3,)]
    (one,) = launchers()["torchrun"](WORLD, 1, SITE)
    assert one.reports == (2, 3)


def test_torchrun_meets_at_the_first_host_and_restarts_nothing() -> None:
    (one,) = launchers()["torchrun"](WORLD, 1, SITE)
    assert one.argv[:4] == ("/env/bin/python", "-u", "-m", "torch.distributed.run")
    assert set(one.argv[4:-1]) == {
        "--nnodes=2",
        "--nproc-per-node=2",
        "--node-rank=1",
        "--master-addr=10.0.0.1",
        "--master-port=29876",
        "--max-restarts=0",
    }
    assert one.argv[-1] == SITE.program
    assert "RANK" not in one.env  # torchrun's to say


def test_leased_devices_are_the_only_ones_shown() -> None:
    world = World(("h",), 2, "h", 1, devices=((4, 6),), visible_devices_env="SOME_VISIBLE_DEVICES")
    for name in launchers():
        assert {each.env["SOME_VISIBLE_DEVICES"] for each in launchers()[name](world, 0, SITE)} == {"4,6"}
    hidden = launchers()["env"](World(("h",), 1, "h", 1, devices=((4,),)), 0, SITE)
    assert not any(value == "4" for value in hidden[0].env.values())  # no variable, nothing shown


def test_each_rank_is_bound_to_its_cores_and_a_launcher_to_those_of_all() -> None:
    site = Site("python", "p.py", cpus=((3,), (5,)))
    assert [each.cpus for each in launchers()["env"](WORLD, 0, site)] == [(3,), (5,)]
    assert [each.cpus for each in launchers()["env"](WORLD, 0, SITE)] == [(), ()]
    assert launchers()["torchrun"](WORLD, 0, site)[0].cpus == (3, 5)
    assert launchers()["torchrun"](WORLD, 0, SITE)[0].cpus == ()


def test_where_one_rank_may_use_any_core_its_launcher_may() -> None:
    site = Site("python", "p.py", cpus=((4, 5), ()))
    assert [each.cpus for each in launchers()["env"](WORLD, 0, site)] == [(4, 5), ()]
    assert launchers()["torchrun"](WORLD, 0, site)[0].cpus == ()


@pytest.mark.parametrize(
    ("cores", "nproc", "bound", "threads"),
    [
        (64, 8, [], 8),
        (63, 8, [], 7),
        (2, 8, [], 1),
        (64, 1, [range(32)], 32),  # alone on one of two nodes
        (64, 4, [range(32)] * 4, 8),  # all on one of them
        (64, 4, [range(32)] * 3 + [range(32, 64)], 10),
        (64, 2, [range(32), ()], 32),  # of the second's device nothing is known
        (64, 2, [range(4), ()], 4),
        (64, 8, [range(4)] * 8, 1),
        (64, 2, [(0,), (1,)], 1),  # cards that are cores
    ],
)
def test_threads_share_the_cores(cores: int, nproc: int, bound: list[Sequence[int]], threads: int) -> None:
    assert threads_per_rank(cores, nproc, bound) == threads


@pytest.mark.slow
def test_torchrun_understands_what_it_is_told(torch_python: str, tmp_path: Path) -> None:
    """Two ranks find each other by the very argv and environment that the launcher gives."""
    program = tmp_path / "meet.py"
    program.write_text(
        "import torch, torch.distributed as d\n"
        "d.init_process_group('gloo')\n"
        "x = torch.ones(1); d.all_reduce(x); print(f'SUM {x.item()}\\n', end='', flush=True)\n"
        "d.destroy_process_group()\n"
    )
    world = World(("127.0.0.1",), 2, "127.0.0.1", 29871)
    (one,) = launchers()["torchrun"](world, 0, Site(torch_python, str(program)))
    environment = {**one.env, "TMPDIR": str(tmp_path)}  # as a round has its own: torchrun leaves a folder there
    done = subprocess.run(one.argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("SUM 2.0") == 2, done.stderr
    assert list(tmp_path.glob("torchelastic_*"))
