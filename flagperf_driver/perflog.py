"""The [PerfLog] line: its writer in the ranks, its reader, and FlagPerf's names of its values."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, BinaryIO, Callable, Collection, Iterator, Mapping, NamedTuple, TextIO

from flagperf_driver import events

MARK = "[PerfLog] "
_MARK = MARK.encode()
_MARK_LENGTH = len(MARK)
_EVENT = re.compile(rb'\{"event": "(\w+)"').match
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
Loads = Callable[[bytes], Any]
CHUNK = 1 << 18
# Maximum length of a line; bounds the reader's memory on a corrupt log.
MAX_LINE = 1 << 20
# The end of the year 9999, the last year that datetime supports.
LAST_MS = 253_402_300_799_999
# Maximum depth of nested lists and objects in a record; deeper values could not be stored again.
MAX_DEPTH = 50


class Record(NamedTuple):
    """One PerfLog line; a tuple, because a frozen dataclass takes a third of the reading time."""

    event: str
    value: Mapping[str, Any] = MappingProxyType({})
    time_ms: int = 0
    rank: int = 0
    file: str = ""
    lineno: int = 0


class SkippedCounts(SimpleNamespace):
    """Counts of broken records, of lines without a [PerfLog] mark, and of records of events not selected."""

    def __init__(self, broken: int = 0, other: int = 0, not_selected: int = 0) -> None:
        self.broken = broken
        self.other = other
        self.not_selected = not_selected


def format_record(record: Record) -> str:
    """Return a record as one line without newline; NaN and infinities are written as strings."""
    metadata = {"file": record.file, "lineno": record.lineno, "time_ms": record.time_ms, "rank": record.rank}
    body = {"event": record.event, "value": _json_value(dict(record.value)), "metadata": metadata}
    return MARK + json.dumps(body, allow_nan=False, separators=(", ", ": "))


def parse_line(line: bytes) -> Record | None:
    """Return the first record of a line; None if it has none or a broken one. Other text may surround the record."""
    return next(Reader().feed(line.rstrip(b"\n") + b"\n"), None)


def read_records(
    stream: BinaryIO,
    skipped: SkippedCounts | None = None,
    events: Collection[str] | None = None,
    loads: Loads | None = None,
) -> Iterator[Record]:
    """Yield every complete record of a log, in order; truncated and foreign lines are counted and skipped.

    ``events`` selects events by name; lines of other events are counted but not parsed. ``loads`` is a JSON parser that
    is faster than the standard library's.
    """
    reader = Reader(skipped, events, loads)
    while True:
        block = stream.read(CHUNK)
        if not block:
            break
        yield from reader.feed(block)
    yield from reader.close()


class Reader:
    """Reads records from a log that arrives in pieces of any size.

    The reader searches for marks, not for lines, so foreign lines cost almost no time. Its memory is bounded by the
    piece and ``MAX_LINE``. If two writers of one file put several records on one line, all of them are read.
    """

    def __init__(
        self, skipped: SkippedCounts | None = None, events: Collection[str] | None = None, loads: Loads | None = None
    ) -> None:
        self._loads = loads or _loads
        self.skipped = skipped if skipped is not None else SkippedCounts()
        self._events = None if events is None else {event.encode() for event in events}
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Record]:
        block = self._rest + piece if self._rest else piece
        end = block.rfind(b"\n") + 1
        if not end and len(block) > MAX_LINE:
            end = _split_long_line(block)
        self._rest = block[end:]
        return self._records(block[:end])

    def close(self) -> Iterator[Record]:
        """Yield the records of a last line without a newline."""
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
            if self._events is None or self._may_be_selected(line):
                record = _parse_own_line(line, self._loads)
                if record is not None and self._events is None:
                    yield record
                else:
                    yield from self._parse_any_line(line.decode("utf-8", "replace"))
            start = block.find(_MARK, end)
        lines = block.count(b"\n") + (not block.endswith(b"\n") and block != b"")
        self.skipped.other += lines - marked

    def _may_be_selected(self, line: bytes) -> bool:
        """Return False if the line starts as our writer starts a record of an event that is not selected."""
        match = _EVENT(line)
        if match is None or match[1] in self._events or _MARK in line:  # type: ignore[operator]
            return True
        self.skipped.not_selected += 1
        return False

    def _parse_any_line(self, text: str) -> Iterator[Record]:
        """Yield all records of one line, with any text between them."""
        at = 0
        while at >= 0:
            try:
                body, end = _scan(text, at)
                record = _record(_checked(body, text))
            except (StopIteration, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                self.skipped.broken += 1
                end = at
            else:
                if self._events is None or record.event.encode() in self._events:
                    yield record
                else:
                    self.skipped.not_selected += 1
            mark = text.find(MARK, end)
            at = mark + _MARK_LENGTH if mark >= 0 else -1


def _parse_own_line(line: bytes, loads: Loads) -> Record | None:
    """Return the record of a line in exactly our writer's format; None for any other line."""
    try:
        body = loads(line)
        value, metadata = body["value"], body["metadata"]
        if type(value) is not dict:
            return None
        if (line.count(b"[") > MAX_DEPTH or line.count(b"{") > MAX_DEPTH) and is_too_deep(body):
            return None
        time_ms, rank, lineno = metadata["time_ms"], metadata["rank"], metadata["lineno"]
        if not type(time_ms) is type(rank) is type(lineno) is int or not 0 <= time_ms <= LAST_MS:
            return None
        event, file = body["event"], metadata["file"]
        return Record(event, value, time_ms, rank, file, lineno) if type(event) is type(file) is str else None
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError):
        return None


def _loads(line: bytes) -> Any:
    """Parse UTF-8 JSON with the standard library, without its detection of other encodings."""
    text = line.decode()
    if may_have_surrogates(text):
        raise ValueError("possibly a lone surrogate")
    body, end = _scan(text, 0)
    if end != len(text):
        raise ValueError("more than one value")
    return body


def _checked(body: Any, text: str) -> Any:
    """Return a body from any writer with lone surrogates escaped; raise ValueError if it is nested too deeply."""
    if is_too_deep(body):
        raise ValueError("nested too deeply")
    return escape_surrogates(body) if may_have_surrogates(text) else body


def is_too_deep(value: Any) -> bool:
    """Return True if lists and objects are nested more than ``MAX_DEPTH`` deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for container in containers for item in container]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def may_have_surrogates(text: str) -> bool:
    r"""Return True if JSON text has an escape such as ``\ud800``, which may be a lone surrogate."""
    return "\\ud" in text or "\\uD" in text


def escape_surrogates(value: Any) -> Any:
    r"""Replace each lone surrogate by the text ``\ud800``: files and terminals cannot encode a lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escape_surrogates(name): escape_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escape_surrogates(item) for item in value]
    return value


def _split_long_line(block: bytes) -> int:
    """Return where to split a line longer than ``MAX_LINE``: before a mark near its end, if there is a mark."""
    mark = block.rfind(_MARK, len(block) - MAX_LINE // 2)
    # The last bytes may be the start of a mark.
    return mark if mark > 0 else len(block) - _MARK_LENGTH


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
    """Writes a rank's records, each with one write call, so that other writers cannot interrupt a line."""

    def __init__(self, rank: int, stream: TextIO | None = None) -> None:
        self.rank = rank
        self.given: Mapping[str, Any] = {}
        """Values from the harness that identify the round; INIT_END repeats them."""
        self.names: Names | None = None
        """The original's names, which records contain in addition to our names."""
        self._stream = stream if stream is not None else sys.stdout

    def __call__(self, event: str, value: Mapping[str, Any] | None = None) -> None:
        caller = sys._getframe(1)
        if event == events.INIT_END and self.given:
            value = {**(value or {}), "given": dict(self.given)}
        if value and self.names is not None:
            value = self.names.with_original_names(event, value)
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


def _json_value(value: Any) -> Any:
    """Return the value with NaN and infinities as the strings "nan", "inf" and "-inf"; JSON has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value


def number(value: object) -> float:
    """Return a record's value as a float, also from the strings "nan" and "inf"; NaN if it is not a number."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer of 309 digits or more; JSON numbers have no limit
        return -math.inf if value < 0 else math.inf  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan


# -- FlagPerf's names -----------------------------------------------------------------------------------------

_PROGRESS = (("global_steps", "step"), ("num_trained_samples", "samples"))
_EVALUATION = (*_PROGRESS, ("eval_{metric}", "{metric}"))
TABLE: Mapping[str, tuple[tuple[str, str], ...]] = {
    events.STEP_END: (*_PROGRESS, ("{rate}", "throughput")),
    events.INIT_EVALUATION: _EVALUATION,
    events.EVALUATE: _EVALUATION,
    events.FINISHED: (
        ("global_steps", "steps"),
        ("num_trained_samples", "samples"),
        ("train_time", "raw_train_time"),
        ("training_{unit}_per_second", "p_whole"),
        ("throughput(ips)_raw", "p_whole"),
        ("throughput(ips)_no_eval", "p_train"),
        ("throughput(ips)_pure_compute", "p_core"),
        ("final_{metric}", "final_metrics.{metric}"),
    ),
}
"""By event: FlagPerf's name and our name of each value; values with the same name in both are not listed.

Ranks write both names, readers accept either. ``{metric}`` is the suite's metric, with FlagPerf's name on the left and
our name on the right; ``{unit}`` is the unit that the suite counts, such as ``images``; ``{rate}`` is FlagPerf's name
of a step's throughput in that unit.
"""

_RATES = {"sequences": "seq/s", "images": "img/s"}
_FINAL = "final_metrics."
_ALSO_READ: tuple[tuple[str, str, str], ...] = (
    (events.STEP_END, r"\w+/s", "throughput"),
    (events.EVALUATE, r"eval_(\w+)", "{}"),
    (events.INIT_EVALUATION, r"eval_(\w+)", "{}"),
    (events.FINISHED, r"training_\w+_per_second", "p_whole"),
    # The original's programs write ips or sps, and some misspell "throughput".
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_raw", "p_whole"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_no_eval", "p_train"),
    (events.FINISHED, r"throu(?:gh|hg)put\([is]ps\)_pure_compute", "p_core"),
    (events.FINISHED, r"final_(?!loss$|metrics$)(\w+)", _FINAL + "{}"),
)
"""Event, pattern and our name, for the names that FlagPerf's other programs use instead of the table's."""

Value = Mapping[str, Any]


class Names:
    """The table for one suite: its metric, FlagPerf's name of that metric, and the unit that the suite counts."""

    def __init__(self, metric: str = "", original_metric: str = "", unit: str = "") -> None:
        self._metrics = {original_metric: metric} if original_metric else {}
        words = {"unit": unit, "rate": _RATES.get(unit, unit + "/s")}
        theirs, ours = {**words, "metric": original_metric or metric}, {**words, "metric": metric}
        self._ours = {
            event: {left.format(**theirs): right.format(**ours) for left, right in rows}
            for event, rows in TABLE.items()
        }

    def with_original_names(self, event: str, value: Value) -> Value:
        """Return a record's value with FlagPerf's names added; names that the record has already are kept."""
        known = self._ours.get(event)
        if known is None:
            return value
        both = dict(value)
        for theirs, ours in known.items():
            logged = _get(value, ours)
            if logged is not _MISSING:
                both.setdefault(theirs, logged)
        return both

    def our_name(self, event: str, name: str) -> str | None:
        """Return our name for FlagPerf's name; None if the event has no such original name."""
        known = self._ours[event]
        if name in known:
            return known[name]
        if name in known.values():
            return None
        for where, pattern, ours in _ALSO_READ:
            match = re.fullmatch(pattern, name) if where == event else None
            if match:
                return self._own_metric(ours.format(*match.groups()))
        return None

    def _own_metric(self, name: str) -> str:
        metric = name[len(_FINAL) :] if name.startswith(_FINAL) else name
        return name[: len(name) - len(metric)] + self._metrics.get(metric, metric)


@dataclass
class NamesInLog:
    """Whose names a log has: FlagPerf's, or both, with the number of values that differ and the first of these."""

    original: bool = False
    has_both: bool = False
    differences: int = 0
    difference: str = ""


class LogTranslator:
    """Translates the records of one log to our names, and finds which names the log has."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.found = NamesInLog()
        self._layouts: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}

    def translate(self, event: str, value: Value) -> Value:
        """Return the value with our names only."""
        if event not in TABLE:
            return value
        # Nearly all records of an event have the same fields.
        layout = (event, *value)
        renamed = self._layouts.get(layout)
        if renamed is None:
            renamed = self._renamed(event, value)
            if len(self._layouts) < _MAX_LAYOUTS:
                self._layouts[layout] = renamed
        if not renamed:
            return value
        kept = dict(value)
        for theirs, ours in renamed:
            del kept[theirs]
            own = _get(value, ours)
            if own is _MISSING:
                self.found.original = True
                _set(kept, ours, value[theirs])
            else:
                self.found.has_both = True
                if value[theirs] != own:
                    self.found.differences += 1
                    self.found.difference = self.found.difference or (
                        f"{theirs} = {value[theirs]!r:.40} and {ours} = {own!r:.40} in {event}"
                    )
        return kept

    def _renamed(self, event: str, value: Value) -> tuple[tuple[str, str], ...]:
        """Return FlagPerf's names in the record, each with our name."""
        pairs = ((name, self._names.our_name(event, name)) for name in value)
        return tuple((theirs, ours) for theirs, ours in pairs if ours is not None)


_MISSING = object()
_MAX_LAYOUTS = 100
"""Bounds the memory that a broken log takes."""


def _get(value: Value, name: str) -> Any:
    """Return a value by our name; ``final_metrics.X`` is the key ``X`` of the object ``final_metrics``."""
    if not name.startswith(_FINAL):
        return value.get(name, _MISSING)
    metrics = value.get(_FINAL[:-1])
    return metrics.get(name[len(_FINAL) :], _MISSING) if isinstance(metrics, dict) else _MISSING


def _set(value: dict[str, Any], name: str, new: Any) -> None:
    if not name.startswith(_FINAL):
        value[name] = new
        return
    metrics = value.get(_FINAL[:-1])
    value[_FINAL[:-1]] = {**(metrics if isinstance(metrics, dict) else {}), name[len(_FINAL) :]: new}
