"""The processes of a host, in its /proc: those outside the round, and ranks that wait for a core."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from flagperf_driver.node.sampling import load
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses, is_elsewhere
from flagperf_driver.node.sampling.load import Load

TICKS = os.sysconf("SC_CLK_TCK")
FOLDER, AGENT, CONTAINER = "/tmp/rounds/r1/h1_noderank0", 3, "3f2a" * 16


class Proc:
    """A fake /proc with a few processes; times are in seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").touch()
        self.add(2, name="harness")
        self.add(AGENT, parent=2, name="agent")

    def add(
        self,
        pid: int,
        parent: int = 1,
        name: str = "python3",
        cpu_s: float = 0.0,
        waited: float | None = None,
        env: Mapping[str, str] | None = None,
        *,
        state: str = "S",
        cgroup: str = "/",
        started: int = 777,
    ) -> int:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        times = f"{round(cpu_s * TICKS)} 0 " + "0 " * 6 + f"{started} "
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} {pid} " + "0 " * 7 + times + "0 " * 12)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        if waited is not None:
            (folder / "schedstat").write_text(f"{round(cpu_s * 1e9)} {round(waited * 1e9)} 7\n")
        (folder / "environ").write_text("".join(f"{key}={value}\0" for key, value in (env or {}).items()))
        return pid

    def rank(self) -> int:
        return self.add(60, AGENT, env=rank(0))

    def foreign(self, container: str | None = None) -> ForeignProcesses:
        return ForeignProcesses(FOLDER, AGENT, container, str(self.root))

    def cores(self, busy: float, stolen: float = 0.0) -> None:
        (self.root / "stat").write_text(
            f"cpu {round(busy * TICKS)} 0 0 999 0 0 0 {round(stolen * TICKS)} 0 0\ncpu0 1\n"
        )

    def load(self) -> Load:
        return Load(FOLDER, AGENT, proc=str(self.root))


def rank(number: int) -> dict[str, str]:
    return {"FLAGPERF_LOG_DIR": FOLDER, "RANK": str(number)}


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_rounds_own_processes_are_not_others(proc: Proc) -> None:
    proc.cores(100.0)
    proc.add(2, 1, "harness", cpu_s=30.0)
    proc.add(9, 1, "make", cpu_s=50.0)
    measured = proc.load()
    assert measured.read(everything=True) == (None, 0.0, 0.0)
    proc.cores(110.0, stolen=0.5)
    proc.add(2, 1, "harness", cpu_s=31.0)  # the seconds before the first reading do not count
    proc.add(4, 3, "rank", cpu_s=6.0, waited=1.0, env=rank(0))  # started after the first reading
    proc.add(9, 1, "make", cpu_s=53.0)
    assert measured.read(everything=True).others == pytest.approx(3.0)
    assert measured.read(everything=True).stolen == pytest.approx(0.5)
    shutil.rmtree(proc.root / "4")  # after its end, its CPU time still counts as the round's
    assert measured.read(everything=True).others == pytest.approx(3.0)


def test_the_longest_wait_of_a_rank_counts_without_data_loaders(proc: Proc) -> None:
    proc.cores(0.0)
    for pid, number in ((4, 0), (5, 1)):
        proc.add(pid, 3, "rank", waited=5.0, env=rank(number))
    proc.add(6, 4, "loader", waited=0.0, env=rank(0))
    measured = proc.load()
    assert measured.read(everything=True).waited == 0.0
    proc.add(4, 3, "rank", waited=5.1, env=rank(0))
    proc.add(5, 3, "rank", waited=5.3, env=rank(1))
    proc.add(6, 4, "loader", waited=9.0, env=rank(0))
    assert measured.read(everything=True).waited == pytest.approx(0.3)
    proc.add(4, 3, "rank", waited=5.3, env=rank(0))
    assert measured.read(everything=True).waited == pytest.approx(0.5)  # the longest wait of each interval counts


def test_a_rank_of_another_round_counts_as_others_and_unknown_waiting_is_reported(proc: Proc) -> None:
    proc.cores(0.0)
    proc.add(8, 1, "rank", waited=0.0, env={**rank(0), "FLAGPERF_LOG_DIR": "/another"})
    measured = proc.load()
    measured.read(everything=True)
    proc.cores(4.0)
    proc.add(8, 1, "rank", cpu_s=4.0, waited=3.0, env={**rank(0), "FLAGPERF_LOG_DIR": "/another"})
    assert measured.read(everything=True) == (None, 4.0, 0.0)
    assert measured.missing == load.NO_RANK
    proc.cores(0.0)
    proc.add(4, 3, "rank", env=rank(0))
    measured = proc.load()
    assert measured.read(everything=True).waited is None
    assert measured.missing == load.NO_SCHEDSTAT
    proc.add(4, 3, "rank", waited=1.0, env=rank(0))  # the control
    assert measured.read(everything=True).waited == 0.0
    assert measured.missing == ""


def test_only_the_first_process_of_a_new_tree_is_examined(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.cores(0.0)
    for pid, parent in ((9, 1), (10, 9), (11, 10)):
        proc.add(pid, parent, "make")
    examined: list[int] = []
    monkeypatch.setattr(ForeignProcesses, "is_own", lambda _, pid: examined.append(pid))
    proc.load().read(everything=True)
    assert examined == [9]


def test_the_time_of_others_never_decreases(proc: Proc) -> None:
    """The kernel counts all cores in ticks, but processes exactly."""
    proc.cores(0.0)
    measured = proc.load()
    measured.read(everything=True)
    proc.cores(1.0)
    assert measured.read(everything=True).others == pytest.approx(1.0)
    proc.add(3, 2, "agent", cpu_s=0.2)
    assert measured.read(everything=True).others == pytest.approx(1.0)


def test_all_processes_are_read_less_often_than_ranks(proc: Proc) -> None:
    proc.cores(0.0)
    proc.add(4, 3, "rank", waited=1.0, env=rank(0))
    measured = proc.load()
    assert measured.read() == (0.0, 0.0, 0.0)
    proc.cores(5.0)
    proc.add(4, 3, "rank", waited=1.5, env=rank(0))
    assert measured.read() == (0.5, None, 0.0)
    assert measured.read(everything=True) == (0.5, 5.0, 0.0)


@pytest.mark.parametrize(
    ("parent", "env", "cgroup"),
    [
        (1, rank(0), "/"),
        (AGENT, {}, "/"),
        (60, {}, "/"),  # a child of a rank
        (1, {}, f"/docker/{CONTAINER}"),
        (1, {}, f"/system.slice/docker-{CONTAINER}.scope"),
    ],
)
def test_processes_of_the_round_are_not_foreign(proc: Proc, parent: int, env: Mapping[str, str], cgroup: str) -> None:
    child = proc.add(70, parent, env=env, cgroup=cgroup)
    assert proc.foreign(CONTAINER).among({proc.rank(), child}) == []


@pytest.mark.parametrize(
    ("env", "cgroup"),
    [({}, "/"), ({"FLAGPERF_LOG_DIR": "/tmp/rounds/r2/h1_noderank0"}, "/"), ({}, "/docker/" + "beef" * 16)],
)
@pytest.mark.parametrize("container", [None, CONTAINER])
def test_other_processes_are_foreign(proc: Proc, env: Mapping[str, str], cgroup: str, container: str | None) -> None:
    proc.add(70, name="a (b) c", env=env, cgroup=cgroup)
    (foreign,) = proc.foreign(container).among({proc.rank(), 70})
    assert (foreign.pid, foreign.name) == (70, "a (b) c")


def test_ended_processes_sharing_servers_and_pids_of_another_namespace_are_not_foreign(proc: Proc) -> None:
    proc.add(70, state="Z")
    proc.add(71, name="acme-cuda-mps")
    assert proc.foreign().among({proc.rank(), 70, 71, 72}) == []
    # Inside a container, until a pid turns out to be a rank's.
    proc.add(70)
    processes = proc.foreign()
    assert processes.among({70}) == []
    assert not processes.pids_are_valid
    assert processes.among({proc.rank(), 70})
    assert processes.among({70})


def test_a_pid_of_a_container_is_elsewhere_and_a_reused_one_is_examined_again(proc: Proc) -> None:
    proc.add(70)
    assert [is_elsewhere(pid, str(proc.root)) for pid in (70, 71)] == [False, True]
    first = Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    if first:
        assert not is_elsewhere(4194305)
    assert ForeignProcesses(FOLDER, AGENT).pids_are_valid is first
    processes = proc.foreign()
    assert processes.among({proc.rank()}) == []
    proc.add(60, env={}, started=999)
    assert [process.pid for process in processes.among({60})] == [60]
    assert ForeignProcesses(FOLDER, os.getppid()).among({os.getpid()}) == []
