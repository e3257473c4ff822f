"""Small parts of the driver: heartbeat, seeds, the check of data, and the detection of hanging ranks."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flagperf_driver import heartbeat, seeds
from flagperf_driver.heartbeat import Beat, Heartbeat, read_heartbeat
from flagperf_driver.node import manifest
from flagperf_driver.node.agent import caches, oom, rank_health
from flagperf_driver.node.agent.rank_health import (
    RankHeartbeat,
    Timeouts,
    find_hung_rank,
    find_slow,
    last_error,
    last_lines,
)
from flagperf_driver.node.processes import BackgroundTask
from tests.helpers.waiting import until


def test_a_beat_can_be_read_from_its_file_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank0.progress"
    heartbeat_file = Heartbeat(path)
    assert read_heartbeat(path) is None
    heartbeat_file.beat(0, heartbeat.INIT)
    heartbeat_file.beat(7, heartbeat.EVALUATE)
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.beats, beat.step, beat.phase) == (2, 7, heartbeat.EVALUATE)
    assert abs(beat.time - time.monotonic()) < 5
    path.write_bytes(b"\1" * 20)
    assert read_heartbeat(path) is None
    Heartbeat(None).beat(1, heartbeat.TRAIN)


def test_seeds_are_the_same_on_all_machines_and_differ_by_seed_purpose_and_rank() -> None:
    assert seeds.derive(42, "model") == int.from_bytes(hashlib.sha256(b"42/model/0").digest()[:4], "little")
    made = {seeds.derive(s, p, r) for s in range(20) for p in (seeds.MODEL, seeds.RANK, "data") for r in range(20)}
    assert len(made) == 20 * 3 * 20
    assert all(0 <= seed < 2**32 for seed in made)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for folder in ("train/a", "train/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.txt").write_text("x")
    (tmp_path / "vocab.txt").write_text("hello")
    return tmp_path


WHOLE: list[dict[str, object]] = [
    {"path": "train", "kind": "folder", "files": 2, "folders": 2},
    {"path": "vocab.txt", "kind": "file", "size": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
    {"path": "vocab.txt", "md5": hashlib.md5(b"hello").hexdigest().upper()},
]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"path": "train", "kind": "folder", "files": 3}, "train: got 2 files, expected 3"),
        ({"path": "train", "kind": "folder", "folders": 1}, "train: got 2 folders, expected 1"),
        ({"path": "vocab.txt", "size": 6, "md5": "0"}, "vocab.txt: got 5 bytes, expected 6"),
        ({"path": "vocab.txt", "sha256": "00"}, "got sha256 2cf24d"),
        ({"path": "vocab.txt", "kind": "folder"}, "folder not found; the path is a file"),
        ({"path": "train"}, "file not found; the path is a folder"),
        ({"path": "vocabulary.txt"}, "contains train, vocab.txt"),
    ],
)
def test_data_that_differ_are_reported(data: Path, entry: Mapping[str, object], problem: str) -> None:
    [message] = manifest.verify(str(data), [*WHOLE, entry])
    assert problem in message


def test_the_check_reports_its_amounts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[dict[str, dict[str, int]]] = []
    monkeypatch.setattr(manifest, "_REPORT_S", 0.0)
    assert manifest.verify(str(data), WHOLE, lambda **amounts: reports.append(amounts)) == []
    whole = {"parts": 3, "files": 2, "bytes": 10}
    assert all(report["total"] == whole for report in reports)
    assert reports[-1]["done"] == whole
    assert len(reports) > 5
    reports.clear()
    monkeypatch.setattr(manifest, "_REPORT_S", 3600.0)
    assert manifest.verify(str(data), WHOLE, lambda **amounts: reports.append(amounts)) == []
    assert len(reports) == 2  # the first one and the last one


def test_surplus_files_are_named_but_hidden_ones_and_a_missing_directory_is_one_problem(data: Path) -> None:
    (data / "train/a/._1.txt").write_text("hidden")
    (data / "train/.cache/c").mkdir(parents=True)
    (data / "train/.cache/2.txt").write_text("hidden")
    assert manifest.verify(str(data), WHOLE) == []
    (data / "train/b/README").write_text("surplus")
    (data / "train/b/1.txt.part").write_text("surplus")
    [message] = manifest.verify(str(data), WHOLE)
    assert message == f"{data}/train: got 4 files (2 .txt, 1 .part, 1 without suffix), expected 2"
    assert len(manifest.verify(str(data), [{"path": "a"}, {"path": "b"}])) == 2
    assert manifest.verify("/no/such", WHOLE) == ["/no/such: data directory not found"]


LIMITS = Timeouts(init_s=100, hang_s=10)


def pulse(step: int | None, idle_s: float, phase: int = heartbeat.TRAIN) -> RankHeartbeat:
    return RankHeartbeat(Path(), None if step is None else Beat(1, step, 0.0, phase), idle_s)


@pytest.mark.parametrize(
    ("pulses", "expected"),
    [
        ({}, None),
        ({0: pulse(6, 11), 1: pulse(5, 12)}, (1, "hang")),
        ({0: pulse(6, 12), 1: pulse(5, 1)}, None),  # rank 0 waits for rank 1, which makes progress
        ({0: pulse(6, 0), 1: pulse(5, 11)}, (1, "hang")),  # these ranks do not wait for each other
        ({0: pulse(5, 11), 1: pulse(5, 12), 2: pulse(5, 11, heartbeat.EVALUATE)}, (2, "hang")),
        ({0: pulse(5, 11), 1: pulse(5, 12)}, (1, "hang")),
        ({0: pulse(0, 101), 1: pulse(None, 101)}, (1, "init_timeout")),
        ({0: pulse(0, 5, heartbeat.DONE), 1: pulse(5, 11)}, (1, "hang")),
        ({0: pulse(0, 11, heartbeat.DONE)}, (0, "hang")),  # the rank is done but does not exit
        ({0: pulse(0, 11, heartbeat.EVALUATE)}, None),  # before its first step
    ],
)
def test_the_rank_everyone_waits_for(pulses: dict[int, RankHeartbeat], expected: tuple[int, str] | None) -> None:
    silence = find_hung_rank(pulses, LIMITS)
    assert (None if silence is None else (silence.rank, silence.kind)) == expected


def test_a_rank_whose_steps_take_longer_is_slow_and_ranks_with_the_same_pace_are_not() -> None:
    def of_pace(step_s: float) -> RankHeartbeat:
        rank = RankHeartbeat(Path())
        rank.recent.extend(Beat(step, step, step * step_s, heartbeat.TRAIN) for step in range(1, 40))
        return rank

    assert find_slow({0: of_pace(0.02), 1: of_pace(0.02), 2: of_pace(0.021)}) == {}
    assert find_slow({0: of_pace(0.02), 1: of_pace(0.02), 2: of_pace(0.06)}) == {"2": 3.0}


def test_a_pause_of_the_agent_does_not_count_as_silence(tmp_path: Path) -> None:
    mine = RankHeartbeat(tmp_path / "rank0.progress")
    mine.read(3600)
    assert mine.idle_s < 10
    mine.read(0.5)
    assert mine.idle_s > 2
    Heartbeat(mine.path).beat(1, heartbeat.TRAIN)
    mine.read(0.5)
    assert mine.idle_s == 0.0, "a beat ends the silence"


def test_last_lines_leave_perflog_lines_and_old_progress_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n10%\r20%\r30%\n[PerfLog] {}\n\nlast")
    assert last_lines(path) == ["first", "30%", "last"]
    assert last_lines(path, 1) == ["last"]
    assert last_lines(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([], ""),
        (["a", "b"], "b"),
        (["ValueError: bad", "WARNING: leaked semaphore"], "ValueError: bad"),
        (["torch.OutOfMemoryError: 3 GiB", "[rank0] bye"], "torch.OutOfMemoryError: 3 GiB"),
        (["Fatal Python error: Aborted", "Thread 1:", "Extension modules: x"], "Fatal Python error: Aborted"),
        (["KeyError: 1", "During handling", "TypeError: 2"], "TypeError: 2"),
    ],
)
def test_the_line_with_the_reason_is_chosen(lines: list[str], word: str) -> None:
    assert last_error(lines) == word


def test_a_tail_reads_new_records(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = rank_health.LogTail(path, None)
    assert list(tail.new()) == []
    path.write_text('[PerfLog] {"event": "A"}\n[PerfLog] {"event"')
    assert [record.event for record in tail.new()] == ["A"]
    with path.open("a") as log:
        log.write(': "B"}')
    assert list(tail.new()) == []
    assert [record.event for record in tail.new(to_the_end=True)] == ["B"]


@pytest.mark.parametrize("version", [1, 2])
def test_the_cause_of_an_oom_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """The files of the kernel are replaced by files in a test folder."""
    group = tmp_path / "cgroup" / ("memory" if version == 1 else "") / "box"
    group.mkdir(parents=True)
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    line = "5:cpu,memory:/box" if version == 1 else "0::/box"
    words = {"/proc/self/cgroup": line, "/proc/vmstat": "nr_free 1\noom_kill 3\n"}
    monkeypatch.setattr(oom, "_CGROUPS", tmp_path / "cgroup")
    read = oom._read
    monkeypatch.setattr(oom, "_read", lambda path: words.get(str(path)) or read(path))

    def hits(number: int) -> None:
        (group / "memory.max_usage_in_bytes").write_text(f"{(64 << 20) if number else 5}\n")
        (group / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
        if version == 2:
            (group / "memory.events").write_text(f"low 0\noom {number}\noom_kill 9\n")

    hits(0)
    (group / limit).write_text(f"{64 << 20}\n")
    before = oom.count()
    assert oom.cause(before, in_container=True) is None
    words["/proc/vmstat"] = "oom_kill 4\n"
    assert oom.cause(before, in_container=True) == "the kernel ran out of memory"
    hits(1)
    assert oom.cause(before, in_container=True) == "the container's memory limit, 64 MiB"
    assert oom.cause(before, in_container=False) == "the memory limit of its control group, 64 MiB"
    (group / limit).write_text("max\n" if version == 2 else "9223372036854771712\n")
    assert oom.cause(before, in_container=True) == "the kernel ran out of memory"


def test_caches_are_cleared_if_permitted_or_with_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_DROP", tmp_path / "drop_caches")
    caches.clear()
    assert (tmp_path / "drop_caches").read_text() == "3"
    monkeypatch.setattr(caches, "_DROP", tmp_path / "no" / "drop_caches")
    monkeypatch.setattr(caches, "_SUDO", ("touch", str(tmp_path / "done")))
    caches.clear()
    assert (tmp_path / "done").exists()
    for sudo, words in ((("sh", "-c", "echo no password >&2; exit 1"), "no password"), (("/no/sudo",), "No such file")):
        monkeypatch.setattr(caches, "_SUDO", sudo)
        with pytest.raises(RuntimeError, match=f"drop_caches: No such file or directory; .*{words}"):
            caches.clear()


def test_a_background_task_returns_what_the_call_returned_or_raised() -> None:
    def result(call: Callable[[], object]) -> object:
        task = BackgroundTask(call)
        until(task.ended, "the end of the call")
        return task.result()

    assert result(lambda: {"size": [1, 2]}) == {"size": [1, 2]}
    with pytest.raises(RuntimeError, match=r"^\[Errno 2\] No such file or directory: '/no/such/file'$"):
        result(Path("/no/such/file").read_text)
    with pytest.raises(RuntimeError, match="the child process was killed"):
        result(lambda: os.kill(os.getpid(), 9))
