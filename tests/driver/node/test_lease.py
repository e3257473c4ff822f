"""Leases are exclusive, and end with the last process of the holder."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.device_lease import Lease, LeaseError, default_directory, holders, owner
from flagperf_driver.node.device_lease import take as attempt


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@contextmanager
def take(directory: Path, count: int, how: str = "device", **more: Any) -> Iterator[Lease]:
    options = {"candidates": range(4), "owner": owner(), **more}
    held = attempt(count, whole_host=how == "host", directory=directory, **options)
    if held is None:
        raise LeaseError("; ".join(holders(directory)))
    try:
        yield held
    finally:
        held.release()


def free(directory: Path, count: int, how: str = "device") -> bool:
    try:
        with take(directory, count, how):
            return True
    except LeaseError:
        return False


def test_leases_have_different_devices_and_all_of_them_or_none(directory: Path) -> None:
    with take(directory, 2) as one, take(directory, 2) as two:
        assert (one.devices, two.devices) == ((0, 1), (2, 3))
        assert not free(directory, 1)
    assert free(directory, 4)
    with take(directory, 1, candidates=[2]), take(directory, 3) as rest:
        assert rest.devices == (0, 1, 3)
    with take(directory, 3):
        assert not free(directory, 2)
        assert free(directory, 1)  # the attempt to lease two devices has kept none
    with pytest.raises(LeaseError, match=r"needs 5 devices, 4 available: \[0, 1, 2, 3\]"), take(directory, 5):
        pass


@pytest.mark.parametrize(("first", "second"), [("host", "device"), ("device", "host"), ("host", "host")])
def test_the_whole_machine_is_leased_exclusively(directory: Path, first: str, second: str) -> None:
    with take(directory, 1, first):
        assert not free(directory, 1, second)
    assert free(directory, 1, second)


def test_the_holder_of_each_device_and_of_the_whole_machine_is_named(directory: Path) -> None:
    with take(directory, 3, owner=owner(case="glm:pytorch:X:1:3:1")):
        lines = holders(directory)
        assert [line.split(" is held by ")[0] for line in lines] == ["device0", "device1", "device2"]
        assert f"device2 is held by pid {os.getpid()}, user " in lines[2]
        assert f"case glm:pytorch:X:1:3:1, agent {os.getpid()}" in lines[2]
    with take(directory, 2, "host") as held:
        assert (held.devices, len(held.fds)) == ((0, 1), 1)
        assert holders(directory)[0].startswith(f"host is held by pid {os.getpid()}")
    assert holders(directory) == []
    with take(directory, 1):
        (directory / "device0.lock").write_text("garbage")
        assert holders(directory) == ["device0 is held by an unknown process"]


def test_devices_of_an_agent_that_has_ended_are_leased_while_its_reaper_runs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = subprocess.Popen(["true"])
    agent.wait()
    monkeypatch.setattr(os, "getpid", lambda: agent.pid)
    with take(directory, 2) as held:
        reaper = subprocess.Popen(["sleep", "300"], pass_fds=held.fds)
    try:
        assert not free(directory, 4)
        assert "whose agent has ended but whose ranks are still running" in holders(directory)[0]
    finally:
        reaper.kill()
        reaper.wait()
    assert free(directory, 4)


def test_many_processes_never_share_a_device(directory: Path, tmp_path: Path) -> None:
    text = (
        "import sys, time, os; from pathlib import Path\n"
        "from flagperf_driver.node.device_lease import take, owner\n"
        "held = 0\n"
        "while held < 5:\n"
        "    l = take(2, candidates=range(4), whole_host=False, owner=owner(), directory=Path(sys.argv[1]))\n"
        "    if l is None: time.sleep(0.002); continue\n"
        "    marks = [Path(sys.argv[2], str(d)) for d in l.devices]\n"
        "    for m in marks: os.close(os.open(m, os.O_CREAT | os.O_EXCL))\n"
        "    time.sleep(0.01)\n"
        "    for m in marks: m.unlink()\n"
        "    l.release(); held += 1\n"
    )
    argv = [sys.executable, "-c", text, str(directory), str(tmp_path)]
    many = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in many]
    assert ends == [("", 0)] * 4


def test_all_users_may_use_the_folder_and_its_locks_with_any_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        with take(directory, 1):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o666}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_users_wait_for_each_others_devices() -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        directory = Path(root, "leases")
        with take(directory, 1):
            assert as_another_user(lambda: free(directory, 3))  # creates further locks
            assert not as_another_user(lambda: free(directory, 4))
        assert free(directory, 4)


def as_another_user(call: Callable[[], bool]) -> bool:
    """Make the call as another user, in a fork, because that user may not be able to run this Python."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(65534)
            code = 0 if call() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


def test_a_link_or_a_pipe_as_a_lock_or_as_the_folder_is_refused(directory: Path, tmp_path: Path) -> None:
    directory.symlink_to(tmp_path)
    with pytest.raises(LeaseError, match="must be a folder"), take(directory, 1):
        pass
    directory.unlink()
    directory.mkdir()
    victim, lock = tmp_path / "victim", directory / "device0.lock"
    victim.write_text("precious")
    makers: list[tuple[Callable[[], object], str]] = [
        (lambda: lock.symlink_to(victim), r"device0\.lock: cannot be used as a lock"),
        (lambda: os.mkfifo(lock), "expected a regular file without other hard links"),
        (lambda: os.link(victim, lock), "expected a regular file without other hard links"),
    ]
    for make, problem in makers:
        make()
        with pytest.raises(LeaseError, match=problem), take(directory, 1):
            pass
        lock.unlink()
    assert victim.read_text() == "precious"


def test_the_folder_is_the_same_for_all_users_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("FLAGPERF_LEASES", raising=False)
    assert tmp_path not in default_directory().parents
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path / "l"))
    assert default_directory() == tmp_path / "l"


def test_a_held_lock_has_a_recent_time(directory: Path) -> None:
    with take(directory, 1):
        pass
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    with take(directory, 1):
        pass
    used = directory / "host.lock", directory / "device0.lock"
    assert all(time.time() - path.stat().st_mtime < 60 for path in used)
