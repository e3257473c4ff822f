"""Devices have one holder at a time, and are free as soon as the last process of the holder is gone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.cluster.lease import LeaseError, default_directory, holders, lease, owner

HOLDER = """
import sys, time
from pathlib import Path
from pytest_flagperf.cluster.lease import lease, owner
wanted, whole, directory, agent = int(sys.argv[1]), sys.argv[2] == "host", Path(sys.argv[3]), sys.argv[4]
said = lambda who: print("WAITS " + who, flush=True)
with lease(wanted, candidates=range(4), whole_host=whole, owner=owner(case=sys.argv[5]), directory=directory,
           on_wait=said) as held:
    if agent == "agent":
        import subprocess
        child = subprocess.Popen(["sleep", "300"], pass_fds=held.fds, start_new_session=True,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("AGENT", child.pid, flush=True)
    print("HAS", *held.devices, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that takes a lease and keeps it until told to end."""

    def __init__(self, directory: Path, wanted: int, how: str = "device", agent: str = "-", case: str = "c") -> None:
        argv = [sys.executable, "-c", HOLDER, str(wanted), how, str(directory), agent, case]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def started(directory: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> Holder:
            holder = Holder(directory, *args, **kwargs)
            stack.callback(holder.kill)
            return holder

        yield start


def take(directory: Path, wanted: int, how: str = "device", **more: Any) -> Any:
    options = {"candidates": range(4), "owner": owner(), "timeout_s": 0, **more}
    return lease(wanted, whole_host=how == "host", directory=directory, **options)


def free(directory: Path, wanted: int, how: str = "device") -> bool:
    try:
        with take(directory, wanted, how):
            return True
    except LeaseError:
        return False


def test_leases_at_the_same_time_have_different_devices(directory: Path) -> None:
    with take(directory, 2) as one, take(directory, 2) as two:
        assert (one.devices, two.devices) == ((0, 1), (2, 3))
        assert not free(directory, 1)
    assert free(directory, 4)


def test_any_free_candidates_will_do(directory: Path) -> None:
    with take(directory, 1, candidates=[2]), take(directory, 3) as rest:
        assert rest.devices == (0, 1, 3)


def test_all_or_nothing(directory: Path) -> None:
    with take(directory, 3):
        assert not free(directory, 2)
        assert free(directory, 1)  # nothing was kept by the one that could not have two


def test_more_than_there_are_is_an_error_at_once(directory: Path) -> None:
    with (
        pytest.raises(LeaseError, match=r"5 devices are wanted and there are 4: \[0, 1, 2, 3\]"),
        take(directory, 5),
    ):
        pass


@pytest.mark.parametrize(("first", "second"), [("host", "device"), ("device", "host"), ("host", "host")])
def test_the_whole_machine_is_shared_with_nobody(directory: Path, first: str, second: str) -> None:
    with take(directory, 1, first):
        assert not free(directory, 1, second)
    assert free(directory, 1, second)


def test_the_whole_machine_still_counts_its_devices(directory: Path) -> None:
    with take(directory, 2, "host") as held:
        assert held.devices == (0, 1)
        assert len(held.fds) == 1


def test_who_must_wait_is_told_who_holds_what(directory: Path, started: Any) -> None:
    holder = started(3, case="glm:pytorch:X:1:3:1")
    assert holder.line() == "HAS 0 1 2"
    told: list[str] = []
    wait = take(directory, 2, on_wait=told.append, timeout_s=0.3)
    with pytest.raises(LeaseError, match="no devices in time: device0 is held by"), wait:
        pass
    assert len(told) == 1  # not with every look
    assert f"device2 is held by pid {holder.process.pid}, user " in told[0]
    assert "case glm:pytorch:X:1:3:1" in told[0]
    assert "device3" not in told[0]


def test_a_holder_of_the_machine_is_named_too(directory: Path, started: Any) -> None:
    holder = started(1, "host")
    assert holder.line() == "HAS 0"
    assert holders(directory)[0].startswith(f"host is held by pid {holder.process.pid}")
    holder.end()
    assert holders(directory) == []


def test_a_killed_holders_devices_are_free_at_once(directory: Path, started: Any) -> None:
    holder = started(4)
    assert holder.line() == "HAS 0 1 2 3"
    assert not free(directory, 1)
    holder.process.send_signal(signal.SIGKILL)
    with take(directory, 4, timeout_s=5) as held:
        assert held.devices == (0, 1, 2, 3)


def test_a_killed_holders_devices_stay_taken_while_its_agent_lives(directory: Path, started: Any) -> None:
    holder = started(2, agent="agent")
    agent = int(holder.line().split()[1])
    assert holder.line() == "HAS 0 1"
    holder.kill()
    try:
        assert not free(directory, 4)
        assert "a process that has ended while its ranks have not yet" in holders(directory)[0]
    finally:
        os.kill(agent, signal.SIGKILL)
    with take(directory, 4, timeout_s=5):
        pass


def test_two_who_wait_both_get_their_turn(directory: Path, started: Any) -> None:
    first = started(4)
    assert first.line() == "HAS 0 1 2 3"
    second, third = started(2), started(2)
    assert second.line().startswith("WAITS device0 is held by")
    assert third.line().startswith("WAITS")
    first.end()
    assert {second.line(), third.line()} == {"HAS 0 1", "HAS 2 3"}


def test_who_wants_the_whole_machine_is_not_passed_by_small_ones_for_ever(directory: Path, started: Any) -> None:
    small = started(1)
    assert small.line() == "HAS 0"
    whole = started(4, "host")
    assert whole.line().startswith("WAITS")
    late = started(1)  # there are free devices, but it came later
    assert late.line().startswith("WAITS")
    small.end()
    assert whole.line() == "HAS 0 1 2 3"
    whole.end()
    assert late.line() == "HAS 0"


def test_many_processes_never_share_a_device(directory: Path, tmp_path: Path) -> None:
    text = (
        "import sys, time, os; from pathlib import Path\n"
        "from pytest_flagperf.cluster.lease import lease, owner\n"
        "for _ in range(5):\n"
        "    directory = Path(sys.argv[1])\n"
        "    with lease(2, candidates=range(4), whole_host=False, owner=owner(), directory=directory) as l:\n"
        "        marks = [Path(sys.argv[2], str(d)) for d in l.devices]\n"
        "        for m in marks: os.close(os.open(m, os.O_CREAT | os.O_EXCL))\n"
        "        time.sleep(0.01)\n"
        "        for m in marks: m.unlink()\n"
    )
    argv = [sys.executable, "-c", text, str(directory), str(tmp_path)]
    many = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in many]
    assert ends == [("", 0)] * 4


def test_all_users_may_use_the_folder_and_its_locks_whatever_ones_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        with take(directory, 1):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o666}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_users_wait_for_each_others_devices() -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        directory = Path(root, "leases")
        with take(directory, 1):
            assert as_somebody_else(lambda: free(directory, 3))  # makes locks of its own
            assert not as_somebody_else(lambda: free(directory, 4))
        assert free(directory, 4)


def as_somebody_else(question: Callable[[], bool]) -> bool:
    """The answer of another user, in a plain fork: that user may not be able to read our Python."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(65534)
            code = 0 if question() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


def test_a_link_in_the_place_of_a_lock_is_refused(directory: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory.mkdir()
    (directory / "device0.lock").symlink_to(victim)
    with pytest.raises(LeaseError, match=r"device0\.lock: cannot be used as a lock"), take(directory, 1):
        pass
    assert victim.read_text() == "precious"


def test_a_pipe_or_a_second_name_in_the_place_of_a_lock_is_refused(directory: Path, tmp_path: Path) -> None:
    directory.mkdir()
    os.mkfifo(directory / "device0.lock")
    with pytest.raises(LeaseError, match="not a plain file of one name"), take(directory, 1):
        pass
    (directory / "device0.lock").unlink()
    (tmp_path / "victim").touch()
    os.link(tmp_path / "victim", directory / "device0.lock")
    with pytest.raises(LeaseError, match="not a plain file of one name"), take(directory, 1):
        pass


def test_a_link_in_the_place_of_the_folder_is_refused(directory: Path, tmp_path: Path) -> None:
    directory.symlink_to(tmp_path)
    with pytest.raises(LeaseError, match="must be a folder"), take(directory, 1):
        pass


def test_a_record_that_is_no_json_is_no_reason_to_fail(directory: Path) -> None:
    with take(directory, 1):
        (directory / "device0.lock").write_text("garbage")
        assert holders(directory) == ["device0 is held by somebody who left no word"]


def test_the_record_says_who_holds_it(directory: Path) -> None:
    with take(directory, 1, owner=owner(case="x")):
        record = json.loads((directory / "device0.lock").read_text())
    assert (record["pid"], record["case"]) == (os.getpid(), "x")


def test_an_error_in_the_body_gives_the_devices_back(directory: Path) -> None:
    with pytest.raises(ValueError, match="mine"), take(directory, 4):
        raise ValueError("mine")
    assert free(directory, 4)


def test_a_deadline_is_kept(directory: Path) -> None:
    started = time.monotonic()
    with take(directory, 4), pytest.raises(LeaseError), take(directory, 1, timeout_s=0.5):
        pass
    assert 0.5 <= time.monotonic() - started < 3


def test_the_folder_is_one_for_all_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("FLAGPERF_LEASES", raising=False)
    assert tmp_path not in default_directory().parents
    monkeypatch.setenv("FLAGPERF_LEASES", str(tmp_path / "l"))
    assert default_directory() == tmp_path / "l"
