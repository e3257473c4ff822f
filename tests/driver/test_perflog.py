"""Writing and reading the PerfLog line, and every kind of damage that a log can have."""

import io
import json
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from flagperf_driver import perflog
from flagperf_driver.perflog import (
    PerfLog,
    Reader,
    Record,
    SkippedCounts,
    format_record,
    number,
    parse_line,
    read_records,
)


def line(event: str = "STEP_END", **value: object) -> str:
    return format_record(Record(event, value, time_ms=5, rank=1, file="train.py", lineno=7)) + "\n"


def reading(text: str | bytes, events: list[str] | None = None) -> tuple[list[Record], SkippedCounts]:
    skipped = SkippedCounts()
    data = text.encode() if isinstance(text, str) else text
    return list(read_records(io.BytesIO(data), skipped, events)), skipped


def test_the_line_is_the_originals_and_is_read_as_written() -> None:
    text = line("FINISHED", e2e_time=1.5)
    assert text.startswith("[PerfLog] ")
    assert json.loads(text[len("[PerfLog] ") :]) == {
        "event": "FINISHED",
        "value": {"e2e_time": 1.5},
        "metadata": {"file": "train.py", "lineno": 7, "time_ms": 5, "rank": 1},
    }
    record = Record("EVALUATE", {"top1": 0.75, "names": ["a", "é"]}, 5, 1, "train.py", 7)
    assert parse_line(format_record(record).encode()) == record
    stream = io.StringIO()
    PerfLog(3, stream)("INIT_START")
    [record], _ = reading(stream.getvalue())
    assert (record.file, record.rank) == ("test_perflog.py", 3)
    assert record.lineno > 0
    assert record.time_ms > 1_600_000_000_000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_read_back(value: float) -> None:
    [record], _ = reading(line(loss=value, nested=[{"x": value}]))
    assert isinstance(record.value["loss"], str)
    assert number(record.value["loss"]) == pytest.approx(value, nan_ok=True)
    assert number(record.value["nested"][0]["x"]) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize("value", [None, "fast", True, [1.0]])
def test_a_value_that_is_not_a_number_is_nan(value: object) -> None:
    assert math.isnan(number(value))


GOOD = line(step=1)
DAMAGE = {
    "foreign lines": (f"hello\n{GOOD}world\n", 1, SkippedCounts(0, 2)),
    "empty lines": ("\n\n", 0, SkippedCounts(0, 2)),
    "no newline at the end": (GOOD + GOOD.rstrip("\n"), 2, SkippedCounts(0, 0)),
    "truncated": (GOOD + GOOD[:40], 1, SkippedCounts(1, 0)),
    "truncated, then a foreign line": (GOOD[:40] + "\nrest\n", 0, SkippedCounts(1, 1)),
    "text before": ("45%|### " + GOOD, 1, SkippedCounts(0, 0)),
    "text behind": (GOOD.rstrip("\n") + " Warning: x\n", 1, SkippedCounts(0, 0)),
    "carriage return": (GOOD.rstrip("\n") + "\r\n", 1, SkippedCounts(0, 0)),
    "three glued, the second truncated": (GOOD.rstrip("\n") + GOOD[:30] + GOOD, 2, SkippedCounts(1, 0)),
    "not JSON": ("[PerfLog] hello\n", 0, SkippedCounts(1, 0)),
    "not an object": ("[PerfLog] [1]\n", 0, SkippedCounts(1, 0)),
    "without event": ('[PerfLog] {"value": {}}\n', 0, SkippedCounts(1, 0)),
    "without metadata": ('[PerfLog] {"event": "X"}\n', 1, SkippedCounts(0, 0)),
    "value is a text": ('[PerfLog] {"event": "X", "value": "ok", "metadata": {}}\n', 1, SkippedCounts(0, 0)),
    "a mark inside a value": (line("FAILED", error="saw [PerfLog] {broken"), 1, SkippedCounts(0, 0)),
    "nested too deeply": ("[PerfLog] " + "[" * 100_000 + "\n", 0, SkippedCounts(1, 0)),
    "metadata of another kind": ('[PerfLog] {"event": "X", "metadata": {"rank": "one"}}\n', 0, SkippedCounts(1, 0)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_lines_are_skipped_and_counted(name: str) -> None:
    text, count, skipped = DAMAGE[name]
    records, counted = reading(text)
    assert (len(records), counted) == (count, skipped)


@pytest.mark.parametrize("between", [b"\0\0\0", b"\xff\xfe\n", b"\xe4\xb8", "训练".encode()[:4] + b"\n", b"\x1b[31m"])
def test_bytes_that_are_not_text_are_skipped(between: bytes) -> None:
    good = GOOD.encode()
    assert len(reading(between + good + between + good)[0]) == 2


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    data = "".join(f"chatter {i}\n{line(step=i)}" for i in range(20)).encode() + GOOD.encode()[:33]
    reader = Reader()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    records = [record for piece in pieces for record in reader.feed(piece)] + list(reader.close())
    assert (records, reader.skipped) == reading(data)
    assert len(records) == 20


def test_events_that_are_not_selected_are_counted_and_a_selected_one_beside_is_read() -> None:
    broken = '[PerfLog] {"event": "STEP_END", not JSON at all\n'
    text = line("STEP_END") * 3 + broken + line("FINISHED") + "[PerfLog] hello\n"
    records, skipped = reading(text, ["FINISHED"])
    assert [record.event for record in records] == ["FINISHED"]
    assert skipped == SkippedCounts(broken=1, other=0, not_selected=4)
    assert reading(text)[1].broken == 2
    records, skipped = reading(line("STEP_END").rstrip("\n") + line("FINISHED"), ["FINISHED"])
    assert [record.event for record in records] == ["FINISHED"]
    assert skipped.not_selected == 1


def test_a_record_after_megabytes_without_a_newline_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perflog, "CHUNK", 1 << 16)
    progress = b"\r 45%|#### |" * 400_000
    records, skipped = reading(progress + GOOD.encode() + GOOD.encode())
    assert len(records) == 2
    assert skipped.broken == 0


@pytest.mark.integration
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def peak(blocks: int) -> int:
        path = tmp_path / "log"
        path.write_text("".join(f"x\n{line(step=i)}" for i in range(1000)) * blocks)
        tracemalloc.start()
        with path.open("rb") as stream:
            assert sum(1 for _ in read_records(stream)) == 1000 * blocks
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(40) < peak(10) * 1.2


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log"
    children = []
    for rank in (0, 1):
        pid = os.fork()
        if pid == 0:
            with path.open("a") as stream:
                log = PerfLog(rank, stream)
                for step in range(300):
                    log("STEP_END", {"step": step, "filling": "x" * (20_000 if step % 10 == 0 else 100)})
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    records, skipped = reading(path.read_bytes())
    assert (len(records), skipped) == (600, SkippedCounts())
