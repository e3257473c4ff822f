"""The load of the host's cores: ranks that wait for a core, and processes outside the round."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from flagperf_driver.node.sampling import load
from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses
from flagperf_driver.node.sampling.load import Load

TICKS = os.sysconf("SC_CLK_TCK")
FOLDER = "/round/logs"


class Proc:
    """A fake /proc with a few processes; times are in seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(2, parent=1, name="harness")
        self.add(3, parent=2, name="agent")

    def add(
        self,
        pid: int,
        parent: int,
        name: str,
        cpu_s: float = 0.0,
        waited: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        ticks = round(cpu_s * TICKS)
        between = " ".join(["0"] * 9)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {between} {ticks} 0 " + " ".join(["0"] * 20))
        if waited is not None:
            (folder / "schedstat").write_text(f"{round(cpu_s * 1e9)} {round(waited * 1e9)} 7\n")
        if env is not None:
            (folder / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in env.items()))

    def cores(self, busy: float, stolen: float = 0.0) -> None:
        (self.root / "stat").write_text(
            f"cpu {round(busy * TICKS)} 0 0 999 0 0 0 {round(stolen * TICKS)} 0 0\ncpu0 1\n"
        )

    def load(self) -> Load:
        return Load(FOLDER, 3, proc=str(self.root))


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
    for process in (proc.root / "4").iterdir():  # after its end, its CPU time still counts as the round's
        process.unlink()
    (proc.root / "4").rmdir()
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
