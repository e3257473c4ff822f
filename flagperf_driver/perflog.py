"""The [PerfLog] line: one definition for the ranks that write it and for everything that reads it."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Dict, Iterator, Mapping, TextIO

MARK = "[PerfLog] "
_MARK = MARK.encode()
# A line longer than this is not ours; it bounds the reader's memory on a corrupt log.
MAX_LINE = 1 << 20


@dataclass(frozen=True)
class Record:
    """One PerfLog line."""

    event: str
    value: Mapping[str, Any] = field(default_factory=dict)
    time_ms: int = 0
    rank: int = 0
    file: str = ""
    lineno: int = 0


@dataclass
class Dropped:
    """What a reader passed over: lines that carry the mark and are not whole, and all the rest."""

    broken: int = 0
    other: int = 0


def format_record(record: Record) -> str:
    """One line, without its newline; numbers that JSON cannot say are written as strings."""
    metadata = {"file": record.file, "lineno": record.lineno, "time_ms": record.time_ms, "rank": record.rank}
    body = {"event": record.event, "value": _sayable(record.value), "metadata": metadata}
    return MARK + json.dumps(body, allow_nan=False, separators=(", ", ": "))


def parse_line(line: bytes) -> Record | None:
    """The line's record; None where there is none or it is broken. Text before the mark is allowed."""
    start = line.find(_MARK)
    if start < 0:
        return None
    try:
        body = json.loads(line[start + len(_MARK) :])
        metadata = body.get("metadata") or {}
        value = body.get("value")
        return Record(
            event=str(body["event"]),
            value=value if isinstance(value, dict) else {"text": value} if value is not None else {},
            time_ms=int(metadata.get("time_ms", 0)),
            rank=int(metadata.get("rank", 0)),
            file=str(metadata.get("file", "")),
            lineno=int(metadata.get("lineno", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read(stream: BinaryIO, dropped: Dropped | None = None) -> Iterator[Record]:
    """Every whole record of a log, in order; truncated and foreign lines are counted, not fatal."""
    count = dropped if dropped is not None else Dropped()
    while True:
        line = stream.readline(MAX_LINE)
        if not line:
            return
        if _MARK not in line:
            count.other += 1
            continue
        record = parse_line(line)
        if record is None:
            count.broken += 1
        else:
            yield record


class PerfLog:
    """Writes a rank's records; each is one write, so that lines of other writers cannot fall into it."""

    def __init__(self, rank: int, stream: TextIO | None = None) -> None:
        self.rank = rank
        self._stream = stream if stream is not None else sys.stdout

    def __call__(self, event: str, value: Mapping[str, Any] | None = None) -> None:
        caller = sys._getframe(1)
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
    except (TypeError, ValueError):
        return math.nan


Json = Dict[str, Any]
