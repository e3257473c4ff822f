"""The [PerfLog] line: one definition for the ranks that write it and for everything that reads it."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, Callable, Collection, Iterator, Mapping, NamedTuple, TextIO

from flagperf_driver import events
from flagperf_driver.original_names import Names

MARK = "[PerfLog] "
_MARK = MARK.encode()
_MARK_LENGTH = len(MARK)
_EVENT = re.compile(rb'\{"event": "(\w+)"').match
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
Loads = Callable[[bytes], Any]
CHUNK = 1 << 18
# A line longer than this is not ours; it bounds the reader's memory on a corrupt log.
MAX_LINE = 1 << 20
# The end of the year 9999, the last time that a calendar has.
LAST_MS = 253_402_300_799_999
# Maximum depth of lists and objects in a record: deeper ones could not be written again.
DEEPEST = 50


class Record(NamedTuple):
    """One PerfLog line; a tuple, because a frozen dataclass takes a third of the reading time."""

    event: str
    value: Mapping[str, Any] = MappingProxyType({})
    time_ms: int = 0
    rank: int = 0
    file: str = ""
    lineno: int = 0


@dataclass
class Dropped:
    """What a reader passed over: marks without a whole record, lines without a mark, records not wanted."""

    broken: int = 0
    other: int = 0
    unwanted: int = 0


def format_record(record: Record) -> str:
    """One line, without its newline; numbers that JSON cannot say are written as strings."""
    metadata = {"file": record.file, "lineno": record.lineno, "time_ms": record.time_ms, "rank": record.rank}
    body = {"event": record.event, "value": _sayable(dict(record.value)), "metadata": metadata}
    return MARK + json.dumps(body, allow_nan=False, separators=(", ", ": "))


def parse_line(line: bytes) -> Record | None:
    """The line's first record; None where there is none or it is broken. Text around it is allowed."""
    return next(Reader().feed(line.rstrip(b"\n") + b"\n"), None)


def read(
    stream: BinaryIO,
    dropped: Dropped | None = None,
    events: Collection[str] | None = None,
    loads: Loads | None = None,
) -> Iterator[Record]:
    """Every whole record of a log, in order; truncated and foreign lines are counted, not fatal.

    With ``events`` only those of these names: the others' lines are counted and not parsed. ``loads`` is a JSON
    parser that is faster than the standard library's, where there is one.
    """
    reader = Reader(dropped, events, loads)
    while True:
        block = stream.read(CHUNK)
        if not block:
            break
        yield from reader.feed(block)
    yield from reader.close()


class Reader:
    """Takes a log in pieces of any size and gives its records.

    It looks for the mark, not for lines, so foreign lines cost next to nothing; its memory is bounded by the
    piece and ``MAX_LINE``. Records glued on one line (two writers of one file) are all found.
    """

    def __init__(
        self, dropped: Dropped | None = None, events: Collection[str] | None = None, loads: Loads | None = None
    ) -> None:
        self._loads = loads or _loads
        self.dropped = dropped if dropped is not None else Dropped()
        self._events = None if events is None else {event.encode() for event in events}
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Record]:
        block = self._rest + piece if self._rest else piece
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) > MAX_LINE:
            cut = _cut_long(block)
        self._rest = block[cut:]
        return self._records(block[:cut])

    def close(self) -> Iterator[Record]:
        """What a last line without a newline holds."""
        rest, self._rest = self._rest, b""
        return self._records(rest)

    def _records(self, block: bytes) -> Iterator[Record]:
        marked = 0
        start = block.find(_MARK)
        while start >= 0:
            end = block.find(b"\n", start)
            if end < 0:
                end = len(block)
            marked += 1
            line = block[start + _MARK_LENGTH : end]
            if self._events is None or self._wanted(line):
                record = _whole(line, self._loads)
                if record is not None and self._events is None:
                    yield record
                else:
                    yield from self._line(line.decode("utf-8", "replace"))
            start = block.find(_MARK, end)
        lines = block.count(b"\n") + (not block.endswith(b"\n") and block != b"")
        self.dropped.other += lines - marked

    def _wanted(self, line: bytes) -> bool:
        """Whether the line may hold a wanted event; decided by the way our writer begins a record."""
        match = _EVENT(line)
        if match is None or match[1] in self._events or _MARK in line:  # type: ignore[operator]
            return True
        self.dropped.unwanted += 1
        return False

    def _line(self, text: str) -> Iterator[Record]:
        """All records of one line, whatever stands between them."""
        at = 0
        while at >= 0:
            try:
                body, end = _scan(text, at)
                record = _record(_checked(body, text))
            except (StopIteration, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                self.dropped.broken += 1
                end = at
            else:
                if self._events is None or record.event.encode() in self._events:
                    yield record
                else:
                    self.dropped.unwanted += 1
            mark = text.find(MARK, end)
            at = mark + _MARK_LENGTH if mark >= 0 else -1


def _whole(line: bytes, loads: Loads) -> Record | None:
    """The record of a line as our writer writes it, without the care that other lines need."""
    try:
        body = loads(line)
        value, metadata = body["value"], body["metadata"]
        if type(value) is not dict:
            return None
        if (line.count(b"[") > DEEPEST or line.count(b"{") > DEEPEST) and is_too_deep(body):
            return None
        time_ms, rank, lineno = metadata["time_ms"], metadata["rank"], metadata["lineno"]
        if not type(time_ms) is type(rank) is type(lineno) is int or not 0 <= time_ms <= LAST_MS:
            return None
        event, file = body["event"], metadata["file"]
        return Record(event, value, time_ms, rank, file, lineno) if type(event) is type(file) is str else None
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError):
        return None


def _loads(line: bytes) -> Any:
    """Parse the standard library's way, without its look for other encodings."""
    text = line.decode()
    if may_have_halves(text):
        raise ValueError("half a surrogate pair, maybe")
    body, end = _scan(text, 0)
    if end != len(text):
        raise ValueError("more than one value")
    return body


def _checked(body: Any, text: str) -> Any:
    """A body of any writer, with characters that can be written; ValueError if it is nested too deeply."""
    if is_too_deep(body):
        raise ValueError("nested too deeply")
    return without_halves(body) if may_have_halves(text) else body


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than ``DEEPEST`` deep."""
    level = [value]
    for _ in range(DEEPEST):
        level = [item for each in level if isinstance(each, (dict, list)) for item in _items(each)]
        if not level:
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def _items(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def may_have_halves(text: str) -> bool:
    r"""Whether JSON text has an escape such as ``\ud800``, which may be half a surrogate pair."""
    return "\\ud" in text or "\\uD" in text


def without_halves(value: Any) -> Any:
    r"""The value with each half of a surrogate pair as the text ``\ud800``: no terminal or file can take a half."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {without_halves(name): without_halves(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_halves(item) for item in value]
    return value


def _cut_long(block: bytes) -> int:
    """Where to cut a line that is longer than any of ours: before its last mark, if that is near."""
    near = block.rfind(_MARK, len(block) - MAX_LINE // 2)
    # A mark may have begun in the last bytes.
    return near if near > 0 else len(block) - _MARK_LENGTH


def _record(body: Any) -> Record:
    metadata = body.get("metadata") or {}
    value = body.get("value")
    time_ms = int(metadata.get("time_ms", 0))
    if not 0 <= time_ms <= LAST_MS:
        raise ValueError("time_ms is out of range")
    return Record(
        str(body["event"]),
        value if isinstance(value, dict) else {} if value is None else {"text": value},
        time_ms,
        int(metadata.get("rank", 0)),
        str(metadata.get("file", "")),
        int(metadata.get("lineno", 0)),
    )


class PerfLog:
    """Writes a rank's records; each is one write, so that lines of other writers cannot fall into it."""

    def __init__(self, rank: int, stream: TextIO | None = None) -> None:
        self.rank = rank
        self.given: Mapping[str, Any] = {}
        """What the harness gave this rank; INIT_END repeats it, so that the log says which round it belongs to."""
        self.names: Names | None = None
        """The original's names of the suite's figures, which records carry beside ours."""
        self._stream = stream if stream is not None else sys.stdout

    def __call__(self, event: str, value: Mapping[str, Any] | None = None) -> None:
        caller = sys._getframe(1)
        if event == events.INIT_END and self.given:
            value = {**(value or {}), "given": dict(self.given)}
        if value and self.names is not None:
            value = self.names.written(event, value)
        record = Record(
            event=event,
            value=value or {},
            time_ms=time.time_ns() // 1_000_000,
            rank=self.rank,
            file=os.path.basename(caller.f_code.co_filename),  # noqa: PTH119 - a Path here costs 5 us a line
            lineno=caller.f_lineno,
        )
        self._stream.write(format_record(record) + "\n")
        self._stream.flush()


def _sayable(value: Any) -> Any:
    """The value with NaN and infinities as the strings "nan", "inf", "-inf": JSON has no words for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in value]
    return value


def number(value: object) -> float:
    """A record's number again, NaN where there is none: the counterpart of what the writer did to NaN."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer of 309 digits or more: JSON has no largest number
        return -math.inf if value < 0 else math.inf  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan
