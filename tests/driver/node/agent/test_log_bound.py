"""The bound of a rank's log: all [PerfLog] lines and the last 64 MiB of the rest, also of killed ranks and agents."""

import io
import os
import re
import signal
from pathlib import Path

import pytest

from flagperf_driver import perflog
from flagperf_driver.node.agent import log_bound
from tests.driver.lab import Lab
from tests.driver.node.agent.test_connections import fetch
from tests.helpers.waiting import until

MIB = 1 << 20
TALK = """
    def talk(mebibytes):
        for step in range(mebibytes):
            log(events.STEP_END, {"step": step})
            os.write(1, (b"chatter %7d\\n" % step) * (1 << 16))
"""


def steps(log: bytes) -> list[int]:
    return [record.value["step"] for record in perflog.read_records(io.BytesIO(log))]


@pytest.mark.integration
def test_the_log_of_a_rank_that_prints_much_stays_small_and_keeps_every_record_and_its_last_words(lab: Lab) -> None:
    lab.start(TALK + "    talk(200); os.write(1, b'last words\\n'); train(1, 10); os.kill(os.getpid(), 9)")
    log = lab.log_dir / "rank0.out.log"
    until(lambda: log.exists() and log.stat().st_size > 200 * MIB > 2 * 512 * log.stat().st_blocks, "freed space")
    lab.over()
    assert lab.exit(0)["last_lines"][-1] == "last words"
    content = log.read_bytes()
    assert steps(content) == list(range(200))
    assert 64 * MIB < len(content) < 81 * MIB
    first, _, rest = content.partition(b"pytest-flagperf: left out ")
    assert first.count(b"\n") == first.count(b"[PerfLog] ") > 100
    assert int(rest.split()[0]) + len(content) - len(first) == pytest.approx(200 * MIB, rel=1e-3)
    assert b"\0" not in content
    assert rest.endswith(b"chatter     199\nlast words\n")
    assert not [path for path in lab.log_dir.iterdir() if "records" in path.name or ".new" in path.name]
    lab.end()


@pytest.mark.integration
def test_a_usual_log_stays_as_it_was_written(lab: Lab) -> None:
    lab.start(TALK + "    talk(60)")
    lab.over()
    assert (lab.log_dir / "rank0.out.log").read_bytes().count(b"chatter") == 60 << 16
    lab.end()


@pytest.mark.integration
def test_the_records_that_a_killed_agent_moved_are_fetched_in_their_place(lab: Lab, tmp_path: Path) -> None:
    lab.hello()
    lab.start(TALK + "    talk(150); train(1, 10**6)")
    records = lab.log_dir / "agent.rank0.out.log.records"
    until(lambda: records.exists() and records.stat().st_size > 60 * 100, "moved records")
    os.kill(lab.agent.pid, signal.SIGKILL)
    lab.agent.wait()
    with Lab(tmp_path / "again") as again:
        again.hello(log_dir=str(lab.log_dir))
        with fetch(again) as tar:
            member = tar.extractfile("rank0.out.log")
            assert member is not None
            found = steps(member.read())
        again.end()
    assert found == list(range(len(found))) != []
    assert not records.exists()


def test_records_that_were_moved_and_not_freed_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bound, "_AT_ONCE", 8192)
    log = tmp_path / "rank0.out.log"
    log.write_bytes(b"".join(b"[PerfLog] %d\n%s\n" % (number, b"x" * 4000) for number in range(6)))
    with log.open("r+b") as of_rank, (tmp_path / "agent.rank0.out.log.records").open("ab") as records:
        handles = of_rank.fileno(), records.fileno()
        freed = log_bound._free(handles[0], 0, handles[1])
        monkeypatch.setattr(log_bound._libc, "fallocate", lambda *_: 0)  # the agent is killed before it frees
        log_bound._free(handles[0], freed, handles[1])
    log_bound.join(tmp_path)
    assert re.findall(rb"\[PerfLog\] (\d)", log.read_bytes()) == [b"%d" % number for number in range(6)]


def test_a_log_on_a_full_disk_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 0)
    monkeypatch.setattr(log_bound, "_AT_ONCE", 8192)
    log = tmp_path / "rank0.out.log"
    log.write_bytes(b"[PerfLog] {}\n" + b"x" * 20_000 + b"\n")
    before = log.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _handle, data: len(data) - 1)
        with pytest.raises(OSError, match="the disk is full"):
            log_bound.LogBound(log).apply(len(before))
    log_bound.join(tmp_path)
    assert log.read_bytes() == before
    log_bound.LogBound(log).apply(len(before))  # a control: with a disk that has room
    log_bound.join(tmp_path)
    assert log.read_bytes().startswith(b"[PerfLog] {}\npytest-flagperf: left out ")
    assert list(tmp_path.iterdir()) == [log]
