"""Whose a process is, by what a host's /proc says of it."""

from __future__ import annotations

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


def strangers(proc: Path, container: str | None = None) -> ForeignProcesses:
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
def test_what_the_round_started_is_no_stranger(proc: Path, parent: int, env: str, cgroup: str) -> None:
    one = process(proc, 70, parent, env=env, cgroup=cgroup)
    assert strangers(proc, CONTAINER).among({rank(proc), one}) == []


@pytest.mark.parametrize(
    ("env", "cgroup"),
    [("", "/"), ("FLAGPERF_LOG_DIR=/tmp/rounds/r2/h1_noderank0\0", "/"), ("", "/docker/" + "beef" * 16)],
)
@pytest.mark.parametrize("container", [None, CONTAINER])
def test_what_it_did_not_start_is(proc: Path, env: str, cgroup: str, container: str | None) -> None:
    process(proc, 70, env=env, cgroup=cgroup, name="a (b) c")
    (found,) = strangers(proc, container).among({rank(proc), 70})
    assert (found.pid, found.name) == (70, "a (b) c")


def test_who_has_ended_and_who_serves_others_is_none(proc: Path) -> None:
    process(proc, 70, state="Z")
    process(proc, 71, name="acme-cuda-mps")
    assert strangers(proc).among({rank(proc), 70, 71, 72}) == []


def test_where_the_drivers_numbers_may_be_anothers_nobody_is_accused(proc: Path) -> None:
    """In a container of our own, until a number is seen to be that of a rank."""
    process(proc, 70)
    ours = strangers(proc)
    assert ours.among({70}) == []
    assert not ours.numbers_are_ours
    assert ours.among({rank(proc), 70})
    assert ours.among({70})


def test_a_number_that_nobody_has_in_a_container_is_of_somebody_outside(proc: Path) -> None:
    process(proc, 70)
    assert [is_elsewhere(pid, str(proc)) for pid in (70, 71)] == [False, True]
    if Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC:
        assert not is_elsewhere(4194305)


def test_on_the_host_itself_the_numbers_are_right_from_the_start() -> None:
    first = Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    assert ForeignProcesses(FOLDER, AGENT).numbers_are_ours is first


def test_a_number_given_anew_is_looked_at_again(proc: Path) -> None:
    ours = strangers(proc)
    assert ours.among({rank(proc)}) == []
    stat = proc / "60/stat"
    stat.write_text(stat.read_text().replace(f" {AGENT} ", " 1 ", 1).replace("777", "999"))
    (proc / "60/environ").write_bytes(b"")
    assert [one.pid for one in ours.among({60})] == [60]


def test_it_runs_on_this_machines_proc() -> None:
    assert ForeignProcesses(FOLDER, os.getppid()).among({os.getpid()}) == []
