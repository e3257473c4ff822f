"""Foreign processes on a host, found in its /proc."""

import os
from pathlib import Path

import pytest

from flagperf_driver.node.sampling.foreign_processes import ForeignProcesses, is_elsewhere

AGENT, FOLDER, CONTAINER = 50, "/tmp/rounds/r1/h1_noderank0", "3f2a" * 16


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    return tmp_path


def process(
    proc: Path, pid: int, parent: int = 1, name: str = "python3", *, state: str = "S", env: str = "", cgroup: str = "/"
) -> int:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {pid} {pid} " + "0 " * 15 + "777 0\n")
    (folder / "environ").write_bytes(env.encode())
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    return pid


def foreign_processes(proc: Path, container: str | None = None) -> ForeignProcesses:
    return ForeignProcesses(FOLDER, AGENT, container, str(proc))


def rank(proc: Path) -> int:
    return process(proc, 60, AGENT, env=f"PATH=/bin\0FLAGPERF_LOG_DIR={FOLDER}\0")


@pytest.mark.parametrize(
    ("parent", "env", "cgroup"),
    [
        (1, f"FLAGPERF_LOG_DIR={FOLDER}\0", "/"),
        (AGENT, "", "/"),
        (60, "", "/"),  # a child of a rank
        (1, "", f"/docker/{CONTAINER}"),
        (1, "", f"/system.slice/docker-{CONTAINER}.scope"),
    ],
)
def test_processes_of_the_round_are_not_foreign(proc: Path, parent: int, env: str, cgroup: str) -> None:
    child = process(proc, 70, parent, env=env, cgroup=cgroup)
    assert foreign_processes(proc, CONTAINER).among({rank(proc), child}) == []


@pytest.mark.parametrize(
    ("env", "cgroup"),
    [("", "/"), ("FLAGPERF_LOG_DIR=/tmp/rounds/r2/h1_noderank0\0", "/"), ("", "/docker/" + "beef" * 16)],
)
@pytest.mark.parametrize("container", [None, CONTAINER])
def test_other_processes_are_foreign(proc: Path, env: str, cgroup: str, container: str | None) -> None:
    process(proc, 70, env=env, cgroup=cgroup, name="a (b) c")
    (foreign,) = foreign_processes(proc, container).among({rank(proc), 70})
    assert (foreign.pid, foreign.name) == (70, "a (b) c")


def test_ended_processes_sharing_servers_and_pids_of_another_namespace_are_not_foreign(proc: Path) -> None:
    process(proc, 70, state="Z")
    process(proc, 71, name="acme-cuda-mps")
    assert foreign_processes(proc).among({rank(proc), 70, 71, 72}) == []
    # Inside a container, until a pid turns out to be a rank's.
    process(proc, 70)
    processes = foreign_processes(proc)
    assert processes.among({70}) == []
    assert not processes.pids_are_valid
    assert processes.among({rank(proc), 70})
    assert processes.among({70})


def test_a_pid_of_a_container_is_elsewhere_and_a_reused_one_is_examined_again(proc: Path) -> None:
    process(proc, 70)
    assert [is_elsewhere(pid, str(proc)) for pid in (70, 71)] == [False, True]
    first = Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    if first:
        assert not is_elsewhere(4194305)
    assert ForeignProcesses(FOLDER, AGENT).pids_are_valid is first
    processes = foreign_processes(proc)
    assert processes.among({rank(proc)}) == []
    stat = proc / "60/stat"
    stat.write_text(stat.read_text().replace(f" {AGENT} ", " 1 ", 1).replace("777", "999"))
    (proc / "60/environ").write_bytes(b"")
    assert [process.pid for process in processes.among({60})] == [60]
    assert ForeignProcesses(FOLDER, os.getppid()).among({os.getpid()}) == []
