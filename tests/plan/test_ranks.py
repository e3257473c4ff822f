"""The processes of a host's ranks, and their environment variables."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flagperf_driver.rank_process import RESERVED_VARIABLES, RankProcess, threads_per_rank
from pytest_flagperf.plan import PlacedHost, Placement, rank_processes
from tests.helpers.rounds import tiny_plan

FIRST = PlacedHost(
    "h0", 0, "10.0.0.1", (4, 6), log_dir="/r/log0", code_root="/code", python="/env/bin/python",
    env={"LD_LIBRARY_PATH": "/env/lib", "PYTHONPATH": "/of/vendor"}, path=("/site",),
)  # fmt: skip
HOSTS = Placement((FIRST, replace(FIRST, name="h1", address="10.0.0.2", log_dir="/r/log1")), 29876, 1)


def ranks(placement: Placement = HOSTS, visible_devices: str | None = None) -> list[list[RankProcess]]:
    return rank_processes(tiny_plan(nnodes=len(placement.hosts), visible_devices=visible_devices), placement)


def test_each_rank_has_its_final_command_and_variables() -> None:
    _, (first, second) = ranks()
    assert [process.rank for process in (first, second)] == [2, 3]
    assert second.argv == ("/env/bin/python", "-u", "/code/suites/tiny/plain/run_pretraining.py")
    assert second.cwd == "/r/log1"
    expected = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29876", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        "FLAGPERF_CASE": "/r/log1/case.json", "FLAGPERF_LOG_DIR": "/r/log1", "PYTHONPATH": "/code:/code/suites:/site",
    }  # fmt: skip
    assert dict(second.env) == {**expected, "LD_LIBRARY_PATH": "/env/lib"}
    assert expected.keys() | {"TMPDIR"} == RESERVED_VARIABLES


def test_a_rank_arrives_with_its_hosts_variables_its_devices_and_its_cores() -> None:
    process = ranks()[1][0]
    received = RankProcess.from_json(process.to_json(), "/elsewhere")
    assert received == process._replace(argv=list(process.argv), cpus=[])
    process = RankProcess(0, (), {"PYTHONPATH": "/code", "WIDTH": "1"}, "/")
    of_user = {"PYTHONPATH": "/x", "PYTEST_ADDOPTS": "-x", "XDG_DATA_HOME": "/home", "HF_CACHE": "/c", "TMPDIR": "/t"}
    expected = {"PATH": "/bin", "PYTHONPATH": "/code", "WIDTH": "1", "TMPDIR": "/round"}
    assert process.environment({"PATH": "/bin", **of_user}, {"TMPDIR": "/round"}) == expected
    assert {process.env["SOME_DEVICES"] for process in ranks(visible_devices="SOME_DEVICES")[0]} == {"4,6"}
    leased = replace(HOSTS, only_leased=True)  # a container with only these devices may number them differently
    for hidden in (ranks()[0][0], ranks(leased, "SOME_DEVICES")[0][0]):
        assert "4,6" not in hidden.env.values()
    bound = replace(HOSTS, hosts=(replace(FIRST, cpus=((4, 5), ())),))
    assert [process.cpus for process in ranks(bound)[0]] == [(4, 5), ()]
    assert [process.cpus for process in ranks()[0]] == [(), ()]


@pytest.mark.parametrize(
    ("cores", "nproc", "bound", "threads"),
    [
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
