"""Who has the host's cores: ranks that wait for one, and processes that are not the round's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from flagperf_driver.node.sampling import load
from flagperf_driver.node.sampling.load import Load

Spin = Callable[..., int]
TICKS = os.sysconf("SC_CLK_TCK")
FOLDER = "/round/logs"


class Proc:
    """A /proc of a few processes; times are seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(2, parent=1, name="harness")
        self.add(3, parent=2, name="agent")

    def add(
        self,
        pid: int,
        parent: int,
        name: str,
        used: float = 0.0,
        waited: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        ticks = round(used * TICKS)
        between = " ".join(["0"] * 9)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {between} {ticks} 0 " + " ".join(["0"] * 20))
        if waited is not None:
            (folder / "schedstat").write_text(f"{round(used * 1e9)} {round(waited * 1e9)} 7\n")
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


def test_what_the_rounds_own_processes_use_is_not_other_work(proc: Proc) -> None:
    proc.cores(100.0)
    proc.add(2, 1, "harness", used=30.0)
    proc.add(9, 1, "make", used=50.0)
    one = proc.load()
    assert one.read(everything=True) == (None, 0.0, 0.0)
    proc.cores(110.0, stolen=0.5)
    proc.add(2, 1, "harness", used=31.0)  # its own seconds of before do not count
    proc.add(4, 3, "rank", used=6.0, waited=1.0, env=rank(0))  # it was started meanwhile
    proc.add(9, 1, "make", used=53.0)
    assert one.read(everything=True).others == pytest.approx(3.0)
    assert one.read(everything=True).stolen == pytest.approx(0.5)
    for process in (proc.root / "4").iterdir():  # it ended, and what it used stays the round's
        process.unlink()
    (proc.root / "4").rmdir()
    assert one.read(everything=True).others == pytest.approx(3.0)


def test_the_rank_that_waits_most_counts_and_its_data_loaders_do_not(proc: Proc) -> None:
    proc.cores(0.0)
    for pid, number in ((4, 0), (5, 1)):
        proc.add(pid, 3, "rank", waited=5.0, env=rank(number))
    proc.add(6, 4, "loader", waited=0.0, env=rank(0))
    one = proc.load()
    assert one.read(everything=True).waited == 0.0
    proc.add(4, 3, "rank", waited=5.1, env=rank(0))
    proc.add(5, 3, "rank", waited=5.3, env=rank(1))
    proc.add(6, 4, "loader", waited=9.0, env=rank(0))
    assert one.read(everything=True).waited == pytest.approx(0.3)
    proc.add(4, 3, "rank", waited=5.3, env=rank(0))
    assert one.read(everything=True).waited == pytest.approx(0.5)  # each time the longest wait counts


def test_a_rank_of_another_round_is_other_work(proc: Proc) -> None:
    proc.cores(0.0)
    proc.add(8, 1, "rank", waited=0.0, env={**rank(0), "FLAGPERF_LOG_DIR": "/another"})
    one = proc.load()
    one.read(everything=True)
    proc.cores(4.0)
    proc.add(8, 1, "rank", used=4.0, waited=3.0, env={**rank(0), "FLAGPERF_LOG_DIR": "/another"})
    assert one.read(everything=True) == (None, 4.0, 0.0)
    assert one.missing == load.NO_RANK


def test_a_kernel_that_counts_no_waiting_is_told(proc: Proc) -> None:
    proc.cores(0.0)
    proc.add(4, 3, "rank", env=rank(0))
    one = proc.load()
    assert one.read(everything=True).waited is None
    assert one.missing == load.NO_SCHEDSTAT
    proc.add(4, 3, "rank", waited=1.0, env=rank(0))  # the control
    assert one.read(everything=True).waited == 0.0
    assert one.missing == ""


def test_the_others_never_use_less_than_before(proc: Proc) -> None:
    """All cores are counted by ticks, processes exactly."""
    proc.cores(0.0)
    one = proc.load()
    one.read(everything=True)
    proc.cores(1.0)
    assert one.read(everything=True).others == pytest.approx(1.0)
    proc.add(3, 2, "agent", used=0.2)
    assert one.read(everything=True).others == pytest.approx(1.0)


def test_all_processes_are_looked_for_less_often_than_ranks_are_asked(proc: Proc) -> None:
    proc.cores(0.0)
    proc.add(4, 3, "rank", waited=1.0, env=rank(0))
    one = proc.load()
    assert one.read() == (0.0, 0.0, 0.0)
    proc.cores(5.0)
    proc.add(4, 3, "rank", waited=1.5, env=rank(0))
    assert one.read() == (0.5, None, 0.0)
    assert one.read(everything=True) == (0.5, 5.0, 0.0)


# -- real processes ------------------------------------------------------------------------------------------


@pytest.fixture
def spin() -> Iterator[Spin]:
    """Start a process that always has something to do, on one core."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(core: int, **environment: str) -> int:
        code = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_rank_beside_a_process_on_its_core_waits_for_half_of_the_time_and_the_process_is_named(
    tmp_path: Path, spin: Spin
) -> None:
    core = max(os.sched_getaffinity(0))
    own = spin(core, FLAGPERF_LOG_DIR=str(tmp_path), RANK="0")
    one = Load(str(tmp_path), own)
    start = time.monotonic()
    one.read(everything=True)
    other = spin(core)
    for _ in range(4):
        time.sleep(load.EVERY_S)
        counters = one.read()
    counters = one.read(everything=True)
    passed = time.monotonic() - start
    assert counters.waited is not None
    # Half of the time if the core has no third process; more where the machine has more to do.
    assert 0.2 * passed < counters.waited < passed
    assert counters.others is not None
    assert counters.others > 0.1 * passed
    assert other in {pid for pid, _ in one._looks._most}
    assert own not in {pid for pid, _ in one._looks._most}


def test_a_rank_that_sleeps_does_not_wait(tmp_path: Path, spin: Spin) -> None:
    """The control, on a core with other work."""
    core = max(os.sched_getaffinity(0))
    sleeper = subprocess.Popen(["sleep", "60"], env={**os.environ, "FLAGPERF_LOG_DIR": str(tmp_path), "RANK": "0"})
    try:
        os.sched_setaffinity(sleeper.pid, [core])
        spin(core)
        one = Load(str(tmp_path), sleeper.pid)
        one.read(everything=True)
        time.sleep(1)
        counters = one.read(everything=True)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert counters.waited is not None
    assert counters.waited < 0.05
