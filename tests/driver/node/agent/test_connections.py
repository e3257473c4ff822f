"""The connection between agent and controller: lost, silent, replaced, garbled; and fetching logs over it."""

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
from flagperf_driver.node.folder import EVENTS, is_orphaned
from tests.driver.lab import FOREVER, Caller, Lab, Message
from tests.helpers.waiting import until

pytestmark = pytest.mark.integration

STEPS = """
    for step in range(300):
        log(events.STEP_END, {"step": step})
        heart.beat(step, heartbeat.TRAIN)
        time.sleep(0.005)
    log(events.FINISHED)
"""


def steps(messages: list[Message]) -> list[int]:
    return [m["value"]["step"] for m in messages if m.get("event") == "STEP_END"]


def wait_for_end(lab: Lab) -> None:
    assert lab.agent.wait(60) == 0
    assert lab.living() == []


def test_another_controller_takes_over_from_a_lost_one(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start(STEPS)
    while len(steps(lab.messages)) < 50:
        lab.next()
    last = max(m.get("seq", 0) for m in lab.messages)
    lab.vanish()
    until(lambda: lab.log(0).count("STEP_END") >= 150, "150 steps")
    second = lab.attach(after=last)
    assert second.wait_for("attached")["pid"] == lab.agent.pid
    second.wait_for("over")
    assert steps(lab.messages) + steps(second.messages) == list(range(300))
    numbers = [m["seq"] for m in lab.messages + second.messages if "seq" in m]
    assert numbers == list(range(1, len(numbers) + 1))
    second.leave()
    wait_for_end(lab)


def test_a_controller_reads_on_behind_any_message_and_in_the_file_of_a_dead_agent(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start("for step in range(20): log(events.STEP_END, {'step': step})")
    lab.over()
    lab.vanish()
    everything, rest = lab.attach(), lab.attach(after=15)
    rest.wait_for("over")
    kept = [json.loads(line) for line in (lab.log_dir / EVENTS).read_text().splitlines()]
    assert steps(kept) == list(range(20))
    assert [m for m in rest.messages if "seq" in m] == kept[15:]
    everything.close()
    lab.agent.kill()
    assert lab.agent.wait(30) == -signal.SIGKILL
    assert [json.loads(line) for line in (lab.log_dir / EVENTS).read_text().splitlines()] == kept
    rest.close()


def test_a_later_controller_replaces_an_earlier_one(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.start(FOREVER)
    first, second = lab.attach(), lab.attach()
    second.wait_for("attached")
    while first.next() is not None:
        pass  # until the agent closes the connection
    second.send({"op": "stop", "reason": "enough"})
    second.wait_for("over")
    first.close()
    second.leave()
    wait_for_end(lab)


def test_a_caller_that_does_not_attach_is_refused(lab: Lab) -> None:
    lab.start("train(1, 30)")
    for line in (b"hello\n", b'{"op": "stop"}\n', b'{"op": "attach", "after": "x"}\n', b"\0\xff\n"):
        caller = Caller(lab.log_dir, first=line)
        assert (caller.next() or {}).get("type") == "error"
        assert caller.next() is None
        caller.close()
    lab.end()
    assert lab.exit(0)["code"] == 0


def test_the_round_ends_with_the_lease_of_a_lost_controller(lab: Lab) -> None:
    lab.hello(lease_s=1)
    lab.start(FOREVER)
    lab.wait_for("beat")
    assert not is_orphaned(lab.log_dir)
    at = time.monotonic()
    lab.vanish()
    wait_for_end(lab)
    assert 1 <= time.monotonic() - at < 20
    facts = json.loads((lab.log_dir / "agent.json").read_text())
    assert (facts["state"], facts["fault"]["kind"]) == ("ended", "lost_controller")
    assert "its lease of 1 s has expired" in facts["fault"]["sentence"]
    assert json.loads((lab.log_dir / "rank0.exit.json").read_text())["cause"] == "stopped"
    assert is_orphaned(lab.log_dir)


def test_an_attached_controller_stops_the_countdown(lab: Lab) -> None:
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


def test_devices_are_leased_until_the_ranks_have_ended(lab: Lab) -> None:
    lab.hello(lease_s=20)
    assert lab.lease(2)["devices"] == [0, 1]
    with Lab(lab.folder / "other") as other:
        other.hello()
        leases = str(lab.folder / "leases")
        assert "device0 is held by pid 1, agent " in other.lease(1, directory=leases)["holders"][0]
        lab.start(FOREVER)
        lab.wait_for("beat")
        lab.vanish()
        assert other.lease(1, directory=leases)["type"] == "busy"
        second = lab.attach()
        second.send({"op": "stop"})
        second.wait_for("over")
        assert other.lease(1, directory=leases)["devices"] == [0]
        other.send({"op": "release"})
        other.wait_for("released")
        second.leave()
        other.end()
    wait_for_end(lab)


def test_devices_of_a_killed_agent_are_free_after_its_ranks_have_ended(lab: Lab) -> None:
    lab.hello(lease_s=20)
    lab.lease(2)
    lab.start("subprocess.Popen(['sleep', '1000'])\n" + FOREVER)
    lab.wait_for("beat")
    lab.agent.kill()
    lab.wait_until_empty()
    until(lambda: is_orphaned(lab.log_dir), "the last look of its reaper", 5)
    with Lab(lab.folder / "again") as again:
        again.hello()
        assert again.lease(2, directory=str(lab.folder / "leases"))["devices"] == [0, 1]
        again.end()


def test_a_closed_terminal_does_not_end_the_agent(lab: Lab) -> None:
    lab.start("train(1, 40)")
    lab.wait_for_start()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        lab.agent.send_signal(number)
    lab.end()
    assert lab.exit(0)["code"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, None])
def test_a_signal_and_leave_end_the_ranks_before_the_agent(lab: Lab, number: signal.Signals | None) -> None:
    lab.start(FOREVER)
    lab.wait_for("beat")
    if number is not None:
        lab.agent.send_signal(number)
        lab.over()
    lab.lost = True
    lab.end()
    assert lab.exit(0)["cause"] == "stopped"


def next_error(lab: Lab) -> str:
    while (message := lab.next())["type"] != "error":
        pass
    return str(message["sentence"])


BAD: list[tuple[Message, str]] = [
    ({"op": "dance"}, "unknown order; expected one of hello, ping, lease"),
    ({"op": "hello", "log_dir": "/nowhere"}, "this agent already has a round"),
    ({"op": "start", "ranks": []}, "has already started its round"),
    ({"op": "lease", "count": 1, "candidates": [0]}, "already has a lease"),
    ({"op": "collect", "offset": 0}, "the logs cannot be collected before the round is over"),
]


def test_invalid_orders_and_garbage_are_refused(lab: Lab) -> None:
    lab.start("train(1, 30)")
    for order, message in BAD:
        lab.send(order)
        assert message in next_error(lab)
    assert lab.agent.stdin is not None
    for garbage in (b"{", b"[1, 2]", b"\xff\xfe\0", b"null", b"[" * 100_000):
        lab.agent.stdin.write(garbage + b"\n\n\n")
        lab.agent.stdin.flush()
        assert "unknown order; expected one of" in next_error(lab)
    lab.end()
    assert lab.exit(0)["code"] == 0


def test_the_first_order_must_be_hello_with_a_valid_name(lab: Lab) -> None:
    lab.send({"op": "stop"})
    assert "the first order must be 'hello'" in next_error(lab)
    for name in ("", "..", "a/b", ".hidden"):
        lab.send({"op": "hello", "log_dir": None, "name": name})
        assert "invalid round name" in next_error(lab)
    lab.send({"op": "ping", "t": 7})
    assert lab.wait_for("pong")["t"] == 7
    lab.start("pass")
    lab.end()


def test_an_impossible_lease_is_an_error(lab: Lab) -> None:
    lab.hello()
    order = {"op": "lease", "count": 1, "candidates": [0, 1], "directory": str(lab.folder / "leases")}
    bad: list[tuple[Message, str]] = [
        ({"count": 3}, "needs 3 devices, 2 available"),
        ({"count": 1, "candidates": "x"}, "ValueError"),
        ({"directory": "/proc/nowhere"}, "FileNotFoundError"),
    ]
    for lease, message in bad:
        lab.send({**order, **lease})
        assert message in next_error(lab)
    lab.end()


def test_a_log_folder_has_one_agent(lab: Lab) -> None:
    lab.hello()
    with Lab(lab.folder / "other") as other:
        other.send({"op": "hello", "log_dir": str(lab.log_dir)})
        sentence = other.wait_for("error")["sentence"]
        assert "another agent uses this folder (it holds agent.lock)" in sentence
        assert f'"pid": {lab.agent.pid}' in sentence
        other.disconnect()
        other.end()
    lab.end()


def test_the_default_folder_is_created_and_removed(lab: Lab) -> None:
    name = f"test-{os.getpid()}"
    folder = Path(lab.hello(log_dir=None, name=name)["log_dir"])
    assert folder.name == name
    assert folder.parents[1].stat().st_mode & 0o777 == 0o700
    lab.start("print('here', os.getcwd())")
    lab.over()
    lab.send({"op": "leave", "remove": True})
    lab.end()
    assert not folder.exists()


def test_leave_keeps_only_the_logs(lab: Lab) -> None:
    lab.start("pass")
    lab.end()
    assert sorted(path.name for path in lab.log_dir.iterdir()) == [
        "milestones.json", "rank0.exit.json", "rank0.out.log", "rank0.progress", "start_task.log",
    ]  # fmt: skip


def test_milestones_are_recorded_with_the_reads_before_and_after(lab: Lab) -> None:
    milestones = "log(events.TRAIN_START)\ntime.sleep(0.7)\nlog(events.TRAIN_END)\nlog(events.FINISHED)"
    begin_ms = time.time_ns() // 1_000_000
    lab.start(milestones, milestones)
    lab.end()
    seen = json.loads((lab.log_dir / "milestones.json").read_text())["ranks"]
    assert sorted(seen) == ["0", "1"]
    for rank, moments in seen.items():
        with (lab.log_dir / f"rank{rank}.out.log").open("rb") as stream:
            times = {record.event: record.time_ms for record in perflog.read_records(stream)}
        # Of the first rank the agent reads every record.
        assert set(moments) == {"started", *times} | ({"steps", "evaluations", "off_s"} if rank == "0" else set())
        for event, time_ms in times.items():
            assert begin_ms <= moments["started"][1] <= moments[event]["after"][1] <= time_ms <= moments[event]["by"][1]
        least = moments["TRAIN_END"]["after"][0] - moments["TRAIN_START"]["by"][0]
        most = moments["TRAIN_END"]["by"][0] - moments["TRAIN_START"]["after"][0]
        assert least <= 0.7 <= most


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


def test_the_logs_are_fetched_in_chunks(lab: Lab) -> None:
    program = """
        Path("deep/er").mkdir(parents=True)
        Path("deep/er/noise").write_bytes(os.urandom(9 << 20))
        os.mkfifo("pipe")
        print("text")
    """
    lab.start(program)
    lab.over()
    (lab.log_dir / "link").symlink_to("deep")
    with fetch(lab) as tar:
        names = set(tar.getnames())
        assert {"deep/er/noise", "link", "rank0.out.log", "rank0.exit.json", "start_task.log"} <= names
        assert [name for name in names if name.startswith("agent.") or name == "pipe"] == []
        for name in ("deep/er/noise", "rank0.out.log", "start_task.log"):
            member = tar.extractfile(name)
            assert member is not None
            assert member.read() == (lab.log_dir / name).read_bytes()
    lab.end()


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


def test_a_full_disk_is_reported_and_the_logs_are_still_fetched(small_disk: Path) -> None:
    program = """
        try:
            for _ in range(1000): print("x" * 8000, flush=True)
        except OSError:
            os._exit(9)
    """
    with Lab(small_disk) as lab:
        lab.start(program)  # a second rank could find the disk full before this one reports it
        fault = lab.wait_for("fault")
        assert (fault["kind"], fault["rank"]) == ("disk", 0)
        assert fault["sentence"].endswith(f"; the disk of {lab.log_dir} is full")
        lab.over()
        with fetch(lab) as tar:
            assert "rank0.out.log" in tar.getnames()
        lab.end()


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def test_an_agent_that_can_never_write_refuses_its_first_order(small_disk: Path) -> None:
    with Lab(small_disk) as lab:
        fill(lab.log_dir)
        lab.send({"op": "hello", "log_dir": str(lab.log_dir), "name": "lab", "lease_s": 0})
        reason = f": the log folder {lab.log_dir} cannot be written: No space left on device"
        assert lab.wait_for("error")["sentence"].endswith(reason)
        lab.send({"op": "leave"})
        lab.end()


def test_an_agent_that_cannot_write_ends_the_round_with_the_reason(small_disk: Path) -> None:
    with Lab(small_disk) as lab:
        lab.hello()
        fill(lab.log_dir)
        lab.start(FOREVER)
        fault = lab.wait_for("fault")
        assert (fault["kind"], fault["rank"]) == ("disk", None)
        assert fault["sentence"] == f"the log folder {lab.log_dir} cannot be written: No space left on device"
        lab.end()
