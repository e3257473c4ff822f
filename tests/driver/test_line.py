"""The line between agent and controller: cut, silent, taken over, garbled; and what is fetched over it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flagperf_driver import perflog
from flagperf_driver.node.folder import is_orphaned
from tests.driver.lab import Caller, Lab, Message

pytestmark = pytest.mark.integration

FOREVER = "train(1, 10**6)"
STEPS = """
    for step in range(1000):
        log(events.STEP_END, {"step": step})
        heart.beat(step, heartbeat.TRAIN)
        time.sleep(0.005)
    log(events.FINISHED)
"""


def steps(messages: list[Message]) -> list[int]:
    return [m["value"]["step"] for m in messages if m.get("event") == "STEP_END"]


def facts(lab: Lab) -> Message:
    body = json.loads((lab.log_dir / "agent.json").read_text())
    assert isinstance(body, dict)
    return body


def wait_for_end(lab: Lab, within_s: float = 10) -> None:
    assert lab.agent.wait(within_s) == 0
    assert lab.left() == []


# -- a lost controller -------------------------------------------------------------------------------------


def test_another_controller_goes_on_where_the_first_one_was_lost(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start(STEPS)
    while len(steps(lab.messages)) < 50:
        lab.next()
    last = lab.messages[-1]["seq"]
    lab.send({"op": "ack", "seq": last - 10})
    lab.vanish()
    time.sleep(3)
    second = lab.attach(after=last)
    assert second.wait_for("attached")["pid"] == lab.agent.pid
    second.wait_for("over")
    assert steps(lab.messages) + steps(second.messages) == list(range(1000))
    numbers = [m["seq"] for m in lab.messages + second.messages if "seq" in m]
    assert numbers == list(range(1, len(numbers) + 1))
    second.leave()
    wait_for_end(lab)


def test_what_was_not_confirmed_is_said_again_and_nothing_else(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start("for step in range(20): log(events.STEP_END, {'step': step})")
    lab.over()
    lab.vanish()
    all_of_it = lab.attach()
    all_of_it.wait_for("over")
    assert steps(all_of_it.messages) == list(range(20))
    confirmed = all_of_it.messages[-3]["seq"]
    all_of_it.send({"op": "ack", "seq": confirmed})
    all_of_it.send({"op": "ping", "t": 1})
    all_of_it.wait_for("pong")
    rest = lab.attach()  # whatever it asks for, what was confirmed is forgotten
    rest.wait_for("over")
    assert [m["seq"] for m in rest.messages if "seq" in m] == [confirmed + 1, confirmed + 2]
    all_of_it.close()
    rest.leave()
    wait_for_end(lab)


def test_of_two_who_attach_the_later_one_has_the_agent(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start(FOREVER)
    first, second = lab.attach(), lab.attach()
    second.wait_for("attached")
    while first.next() is not None:
        pass  # it is hung up on
    second.send({"op": "stop", "reason": "enough"})
    second.wait_for("over")
    first.close()
    second.leave()
    wait_for_end(lab)


@pytest.mark.parametrize("line", [b"hello\n", b'{"op": "stop"}\n', b'{"op": "attach", "after": "x"}\n', b"\0\xff\n"])
def test_who_does_not_say_attach_is_sent_away_and_changes_nothing(lab: Lab, line: bytes) -> None:
    lab.start("train(1, 30)")
    stranger = Caller(lab.log_dir, first=line)
    assert (stranger.next() or {}).get("type") == "error"
    assert stranger.next() is None
    stranger.close()
    lab.end()
    assert lab.exit(0)["code"] == 0


def test_the_lease_ends_a_lost_controllers_round_and_says_so_in_the_folder(lab: Lab) -> None:
    lab.hello(lease_s=1)
    lab.start(FOREVER)
    lab.wait_for("beat")
    assert not is_orphaned(lab.log_dir)
    at = time.monotonic()
    lab.vanish()
    wait_for_end(lab)
    assert 1 <= time.monotonic() - at < 20
    assert facts(lab)["fault"]["kind"] == "lost_controller"
    assert "its lease of 1 s is over" in facts(lab)["fault"]["sentence"]
    assert facts(lab)["state"] == "ended"
    assert json.loads((lab.log_dir / "rank0.exit.json").read_text())["cause"] == "stopped"
    assert is_orphaned(lab.log_dir)


def test_who_attaches_stops_the_count(lab: Lab) -> None:
    lab.hello(lease_s=1.5)
    lab.start(FOREVER)
    lab.wait_for("beat")
    lab.vanish()
    time.sleep(1)
    second = lab.attach()
    time.sleep(1.5)
    second.send({"op": "stop"})
    second.wait_for("over")
    assert [m for m in second.messages if m["type"] == "fault"] == []
    second.leave()
    wait_for_end(lab)


@pytest.mark.parametrize("speaks", [True, False])
def test_a_controller_that_falls_silent_is_lost_though_its_line_is_there(lab: Lab, speaks: bool) -> None:
    lab.hello(lease_s=0.5, silence_s=0.7)
    lab.start("train(1, 100)")
    until = time.monotonic() + 2.5
    while time.monotonic() < until and lab.agent.poll() is None:
        if speaks:
            lab.send({"op": "ack", "seq": 0})
        time.sleep(0.1)
    lab.lost = not speaks
    lab.end()
    assert [m["kind"] for m in lab.of("fault")] == ([] if speaks else ["lost_controller"])


def test_devices_stay_leased_until_the_ranks_have_ended_and_no_longer(lab: Lab) -> None:
    lab.hello(lease_s=20)
    assert lab.taken(2)["devices"] == [0, 1]
    with Lab(lab.folder / "other") as other:
        other.hello()
        leases = str(lab.folder / "leases")
        assert "device0 is held by pid 1, agent " in other.taken(1, directory=leases)["holders"][0]
        lab.start(FOREVER)
        lab.wait_for("beat")
        lab.vanish()
        assert other.taken(1, directory=leases)["type"] == "busy"
        second = lab.attach()
        second.send({"op": "stop"})
        second.wait_for("over")
        assert other.taken(1, directory=leases)["devices"] == [0]
        other.send({"op": "release"})
        other.wait_for("released")
        second.leave()
        other.end()
    wait_for_end(lab)


def test_a_killed_agents_devices_are_free_when_its_ranks_are_gone(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.taken(2)
    lab.start("subprocess.Popen(['sleep', '1000'])\n" + FOREVER)
    lab.wait_for("beat")
    lab.agent.kill()
    lab.wait_until_empty(within_s=5)
    deadline = time.monotonic() + 5
    while not is_orphaned(lab.log_dir):  # its reaper looks once more
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with Lab(lab.folder / "again") as again:
        again.hello()
        assert again.taken(2, directory=str(lab.folder / "leases"))["devices"] == [0, 1]
        again.end()


def test_a_closed_terminal_does_not_end_it(lab: Lab) -> None:
    lab.start("train(1, 40)")
    lab.wait_for("started")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        lab.agent.send_signal(number)
    lab.end()
    assert lab.exit(0)["code"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_told_to_end_it_ends_its_ranks_first(lab: Lab, number: signal.Signals) -> None:
    lab.start(FOREVER)
    lab.wait_for("beat")
    lab.agent.send_signal(number)
    lab.over()
    lab.lost = True
    lab.end()
    assert lab.exit(0)["cause"] == "stopped"


def test_who_leaves_ends_the_round(lab: Lab) -> None:
    lab.start(FOREVER)
    lab.wait_for("beat")
    lab.lost = True
    lab.end()
    assert lab.exit(0)["cause"] == "stopped"


# -- orders that make no sense -----------------------------------------------------------------------------

BAD = [
    ({"op": "dance"}, "an order that is not known; there are hello, ping, ack, lease"),
    ({"op": "ack", "seq": "x"}, "ValueError"),
    ({"op": "ack"}, "KeyError: 'seq'"),
    ({"op": "hello", "log_dir": "/nowhere"}, "this agent has a round already"),
    ({"op": "start", "ranks": []}, "has started its round already"),
    ({"op": "lease", "count": 1, "candidates": [0]}, "has its devices already"),
    ({"op": "collect", "offset": 0}, "the logs can be had when the round is over"),
]


@pytest.mark.parametrize(("order", "named"), BAD)
def test_an_order_that_cannot_be_followed_is_answered_and_changes_nothing(lab: Lab, order: Message, named: str) -> None:
    lab.start("train(1, 30)")
    lab.send(order)
    assert named in lab.wait_for("error")["sentence"]
    lab.end()
    assert lab.exit(0)["code"] == 0


@pytest.mark.parametrize("garbage", [b"{", b"[1, 2]", b"\xff\xfe\0", b"null", b"[" * 100_000])
def test_garbage_is_answered_and_changes_nothing(lab: Lab, garbage: bytes) -> None:
    lab.start("train(1, 30)")
    assert lab.agent.stdin is not None
    lab.agent.stdin.write(garbage + b"\n\n\n")
    lab.agent.stdin.flush()
    assert "an order that is not known" in lab.wait_for("error")["sentence"]
    lab.end()
    assert lab.exit(0)["code"] == 0


def test_before_hello_nothing_else_is_taken(lab: Lab) -> None:
    lab.send({"op": "stop"})
    assert "the first order must be 'hello'" in lab.wait_for("error")["sentence"]
    lab.send({"op": "ping", "t": 7})
    assert lab.wait_for("pong")["t"] == 7
    lab.start("pass")
    lab.end()


@pytest.mark.parametrize(
    ("lease", "named"),
    [
        ({"count": 3}, "3 devices are wanted and there are 2"),
        ({"count": 1, "candidates": "x"}, "ValueError"),
        ({"directory": "/proc/nowhere"}, "FileNotFoundError"),
    ],
)
def test_a_lease_that_can_never_be_is_an_error_and_no_reason_to_wait(lab: Lab, lease: Message, named: str) -> None:
    lab.hello()
    order = {"op": "lease", "count": 1, "candidates": [0, 1], "directory": str(lab.folder / "leases")}
    lab.send({**order, **lease})
    assert named in lab.wait_for("error")["sentence"]
    lab.end()


# -- the folder --------------------------------------------------------------------------------------------


def test_a_folder_has_one_agent(lab: Lab) -> None:
    lab.hello()
    with Lab(lab.folder / "other") as other:
        other.send({"op": "hello", "log_dir": str(lab.log_dir)})
        sentence = other.wait_for("error")["sentence"]
        assert "another agent logs there (it holds agent.lock)" in sentence
        assert f'"pid": {lab.agent.pid}' in sentence
        other.hang_up()
        other.end()
    lab.end()


def test_without_a_folder_it_makes_one_and_takes_it_away(lab: Lab) -> None:
    name = f"test-{os.getpid()}"
    folder = Path(lab.hello(log_dir=None, name=name)["log_dir"])
    assert folder.name == name
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700
    lab.start("print('here', os.getcwd())")
    lab.over()
    lab.send({"op": "leave", "remove": True})
    lab.end()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_a_name_that_no_folder_can_have_is_refused(lab: Lab, name: str) -> None:
    lab.send({"op": "hello", "log_dir": None, "name": name})
    assert "a round's name must be one that a folder can have" in lab.wait_for("error")["sentence"]
    lab.lost = True
    lab.end()


def test_leave_keeps_only_the_logs(lab: Lab) -> None:
    lab.start("pass")
    lab.end()
    assert sorted(path.name for path in lab.log_dir.iterdir()) == [
        "milestones.json",
        "rank0.exit.json",
        "rank0.out.log",
        "rank0.progress",
        "start_task.log",
    ]


def test_the_agent_notes_between_which_looks_each_milestone_was_written(lab: Lab) -> None:
    milestones = "log(events.TRAIN_START)\ntime.sleep(0.7)\nlog(events.TRAIN_END)\nlog(events.FINISHED)"
    begin_ms = time.time_ns() // 1_000_000
    lab.start(milestones, milestones)
    lab.end()
    seen = json.loads((lab.log_dir / "milestones.json").read_text())["ranks"]
    assert sorted(seen) == ["0", "1"]
    for rank, its in seen.items():
        with (lab.log_dir / f"rank{rank}.out.log").open("rb") as stream:
            times = {record.event: record.time_ms for record in perflog.read_records(stream)}
        assert set(its) == {"started", *times}
        for event, time_ms in times.items():
            assert begin_ms <= its["started"][1] <= its[event]["after"][1] <= time_ms <= its[event]["by"][1]
        least = its["TRAIN_END"]["after"][0] - its["TRAIN_START"]["by"][0]
        most = its["TRAIN_END"]["by"][0] - its["TRAIN_START"]["after"][0]
        assert least <= 0.7 <= most


# -- fetching ----------------------------------------------------------------------------------------------


def fetch(lab: Lab) -> tarfile.TarFile:
    raw = b""
    while True:
        lab.send({"op": "collect", "offset": len(raw)})
        chunk = lab.next()
        while chunk["type"] != "chunk":
            chunk = lab.next()
        assert chunk["offset"] == len(raw)
        raw += base64.b64decode(chunk["data"])
        if len(raw) == chunk["size"]:
            break
    assert hashlib.sha256(raw).hexdigest() == chunk["sha256"]
    tar = tarfile.open(fileobj=io.BytesIO(raw))  # noqa: SIM115 - the caller's with closes it
    assert chunk["files"] == sum(member.isreg() for member in tar.getmembers())
    return tar


def test_the_logs_come_whole_in_pieces(lab: Lab) -> None:
    program = """
        Path("deep/er").mkdir(parents=True)
        Path("deep/er/noise").write_bytes(os.urandom(9 << 20))
        Path("link").symlink_to("deep")
        os.mkfifo("pipe")
        print("said")
    """
    lab.start(program)
    lab.over()
    with fetch(lab) as tar:
        names = set(tar.getnames())
        assert {"deep/er/noise", "link", "rank0.out.log", "rank0.exit.json", "start_task.log"} <= names
        assert [name for name in names if name.startswith("agent.") or name == "pipe"] == []
        for name in ("deep/er/noise", "rank0.out.log", "start_task.log"):
            member = tar.extractfile(name)
            assert member is not None
            assert member.read() == (lab.log_dir / name).read_bytes()
    lab.end()


def test_an_agent_without_a_round_hands_out_what_another_one_left(lab: Lab) -> None:
    (lab.log_dir / "rank0.out.log").write_text("left")
    lab.hello()
    with fetch(lab) as tar:
        assert tar.getnames() == ["rank0.out.log"]
    lab.send({"op": "leave", "remove": True})
    lab.end()
    assert not lab.log_dir.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A log folder on a disk of 1 MiB."""
    folder = tmp_path / "logs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_logs_are_fetched_all_the_same(small_disk: Path) -> None:
    program = """
        try:
            for _ in range(1000): print("x" * 8000, flush=True)
        except OSError:
            os._exit(9)
    """
    with Lab(small_disk) as lab:
        lab.start(program, FOREVER)
        fault = lab.wait_for("fault")
        assert fault["kind"] == "crash"
        assert fault["sentence"].endswith(f"; the disk of {lab.log_dir} is full")
        lab.over()
        with fetch(lab) as tar:
            assert "rank0.out.log" in tar.getnames()
        lab.end()


def test_an_agent_that_cannot_write_ends_the_round_and_says_why(small_disk: Path) -> None:
    with Lab(small_disk) as lab:
        lab.hello()
        with suppress(OSError), (lab.log_dir / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        lab.start(FOREVER)
        fault = lab.wait_for("fault")
        assert (fault["kind"], fault["rank"]) == ("disk", None)
        assert fault["sentence"] == f"the log folder {lab.log_dir} cannot be written: No space left on device"
        lab.end()
