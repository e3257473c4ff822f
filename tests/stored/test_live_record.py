"""The live record: what is written at which rate, and how damaged files are read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flagperf.stored import FormatError, live_record
from pytest_flagperf.stored.live_record import LiveFile, LiveRecord, is_alive, live_files, this_process
from tests.helpers.live_runs import Clock


def kinds(path: Path) -> list[str]:
    return [entry["kind"] for entry in LiveFile(path).new()]


def test_the_first_line_identifies_the_process(tmp_path: Path) -> None:
    record = LiveRecord(tmp_path / "live" / "controller.jsonl", Clock())
    assert not (tmp_path / "live").exists()  # before the first line
    record.write(live_record.NOTE, text="waiting")
    first, note = LiveFile(tmp_path / "live" / "controller.jsonl").new()
    assert first.items() >= {"kind": "process", "schema": live_record.SCHEMA, **this_process()}.items()
    assert note.items() >= {"kind": "note", "text": "waiting"}.items()
    assert is_alive(first) is True


def test_values_that_change_often_are_written_at_a_limited_rate(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.jsonl"
    record = LiveRecord(path, clock)
    for step in range(600):
        clock.now += 0.1
        record.write_latest("progress", live_record.PROGRESS, step=step)
    assert 55 <= kinds(path).count("progress") <= 62, "a second apart"
    record.beat()
    record.write(live_record.END, exit=0)
    *_, last, end = LiveFile(path).new()
    assert (last["step"], end["kind"]) == (599, "end")  # nothing that is waiting is lost


def test_a_process_without_news_gives_a_sign_of_life(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.jsonl"
    record = LiveRecord(path, clock)
    record.write(live_record.NOTE, text="x")
    os.utime(path, (0, 0))
    record.beat()
    assert path.stat().st_mtime == 0
    size = path.stat().st_size
    clock.now += live_record.BEAT_S
    record.beat()
    assert path.stat().st_mtime > 0
    assert path.stat().st_size == size


def test_a_full_disk_or_a_removed_folder_fails_nothing(tmp_path: Path) -> None:
    full = LiveRecord(Path("/dev/full"))
    full.write(live_record.NOTE, text="x")
    full.beat()
    full.close()
    blocked = tmp_path / "file"
    blocked.touch()
    record = LiveRecord(blocked / "live" / "a.jsonl")
    record.write(live_record.NOTE, text="x")
    record.close()


def test_a_resumed_run_continues_after_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = LiveRecord(path, Clock())
    first.write(live_record.NOTE, text="before")
    first.close()
    path.write_bytes(path.read_bytes()[:-5])
    second = LiveRecord(path, Clock())
    second.write(live_record.NOTE, text="after")
    file = LiveFile(path)
    assert [entry.get("text") for entry in file.new() if entry["kind"] == "note"] == ["after"]
    assert file.unreadable == 1


def test_a_line_without_its_end_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"t": 1.5, "kind": "note", "text": "whole"}).encode()
    path.write_bytes(line[:10])
    file = LiveFile(path)
    assert list(file.new()) == []
    with path.open("ab") as out:
        out.write(line[10:] + b"\n")
    assert [entry["text"] for entry in file.new()] == ["whole"]
    assert list(file.new()) == []
    assert file.unreadable == 0


@pytest.mark.parametrize(
    "line",
    [
        b"garbage", b"[]", b"{}", b'{"kind": "note"}', b'{"kind": 3, "t": 1.0}', b'{"kind": "note", "t": "now"}',
        b'{"kind": "note", "t": 1.0, "text": "' + b"x" * (1 << 18) + b'"}', b"[" * 100_000, b"\xff\xfe",
    ],
    ids=lambda line: repr(line[:30]),
)  # fmt: skip
def test_lines_that_are_no_entries_are_counted_and_ignored(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b'\n{"t": 2.5, "kind": "note", "text": "good"}\n\n')
    file = LiveFile(path)
    assert [entry["text"] for entry in file.new()] == ["good"]
    assert file.unreadable == 1


def test_a_newer_record_is_refused_pytest_comes_first_and_other_files_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"t": 1.5, "kind": "process", "schema": 99}\n')
    with pytest.raises(FormatError, match="schema 99 was written by a newer pytest-flagperf"):
        list(LiveFile(path).new())
    (tmp_path / "live").mkdir()
    for name in ("gw1.jsonl", "controller.jsonl", "gw0.jsonl", ".x.tmp", "notes.txt", "\x1b[2J.jsonl"):
        (tmp_path / "live" / name).touch()
    os.mkfifo(tmp_path / "live" / "pipe.jsonl")
    (tmp_path / "live" / "gone.jsonl").symlink_to("nowhere")
    assert [path.name for path in live_files(tmp_path)] == ["controller.jsonl", "gw0.jsonl", "gw1.jsonl"]
    assert live_files(tmp_path / "nothing") == []


def test_a_process_is_dead_alive_or_unknown() -> None:
    own = this_process()
    assert is_alive(own) is True
    with subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b""
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive({**own, "pid": child.pid, "since": None}) is False  # its exit code was not read yet
        child.wait()
        assert is_alive({**own, "pid": child.pid}) is False
    assert is_alive({**own, "since": 1}) is False  # another process with the same pid
    assert is_alive({**own, "machine": "elsewhere"}) is None
    assert is_alive({**own, "space": "another container"}) is None
    assert is_alive({}) is None
    assert is_alive({**own, "pid": -1}) is None
