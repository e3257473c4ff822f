"""Folders of Arrow files as the package ``datasets`` saves them (``save_to_disk``), read without any package.

``state.json`` lists the files in order. A file is a stream of Arrow (https://arrow.apache.org/docs/format/Columnar.html):
messages with metadata as FlatBuffers, first the schema, then batches of rows. A batch has for each column the bits of
its valid rows, and its values; for binary columns also the places at which they begin. Only the metadata is read when
a folder is opened. A row is read where it is needed: a map of a file that is larger than the memory reads many
pages around each row, and a cut file or a lost network would end the process without a message.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.shares import SourceError

STATE = "state.json"
CONTINUATION = 0xFFFFFFFF
SCHEMA, BATCH = 1, 3
"""The kinds of messages that a stream without dictionaries has."""
INT, BINARY, UTF8, LARGE_BINARY, LARGE_UTF8 = 2, 4, 5, 19, 20
"""The numbers of the types of columns that are read or skipped."""
OFFSETS = {BINARY: "<2i", UTF8: "<2i", LARGE_BINARY: "<2q", LARGE_UTF8: "<2q"}
"""The type of two neighbouring places in a column of such values."""
INTEGERS = {8: "<b", 16: "<h", 32: "<i", 64: "<q"}
LONGEST_METADATA = 1 << 24


class ArrowFolder:
    """The rows of a folder, by their numbers; a column's value is bytes, a whole number, or None."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self.folder = folder
        self._batches: list[_Batch] = []
        self._first: list[int] = []
        """The number of the first row of each batch."""
        self._count = 0
        for path in _files(folder):
            for batch in _read_batches(path, columns):
                self._first.append(self._count)
                self._batches.append(batch)
                self._count += batch.rows
        if not self._count:
            raise SourceError(f"{folder}: no rows; copy the folder again")

    def __len__(self) -> int:
        return self._count

    def read(self, number: int) -> dict[str, Any]:
        """Return the values of a row by column."""
        place = bisect_right(self._first, number) - 1
        batch = self._batches[place]
        with _opened(batch.path) as file:
            row = number - self._first[place]
            return {name: column.read(file, row) for name, column in batch.columns.items()}

    def place(self, number: int) -> str:
        """Return where a row is, for messages."""
        place = bisect_right(self._first, number) - 1
        return f"{self._batches[place].path}: row {number - self._first[place]} of a batch, row {number} of the folder"


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder in their order."""
    state = folder / STATE
    try:
        body = json.loads(state.read_text(encoding="utf-8"))
        return [folder / one["filename"] for one in body["_data_files"]]
    except OSError as error:
        raise SourceError(f"{state}: cannot be read ({error.strerror}); copy the folder again") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{state}: not the state of a saved dataset ({error!r}); copy the folder again") from None


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); copy the folder again") from None
    try:
        yield _File(path, number)
    finally:
        os.close(number)


@dataclass(frozen=True)
class _File:
    """An open file, whose errors name it."""

    path: Path
    number: int

    @property
    def size(self) -> int:
        return os.fstat(self.number).st_size

    def read(self, start: int, size: int) -> bytes:
        try:
            content = os.pread(self.number, size, start)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read ({error.strerror})") from None
        if len(content) != size:
            raise SourceError(f"{self.path}: ends after {start + len(content)} bytes; copy the file again")
        return content


@dataclass(frozen=True)
class _Column:
    """Where a batch has a column: the places of its parts in the file; ``valid`` is None if all rows have a value."""

    kind: str
    """The type of an integer, or of two places of binary values."""
    valid: int | None
    values: int
    """The integers, or the places at which binary values begin."""
    content: int | None = None
    """The binary values."""
    size: int = 0
    """Bytes of all binary values."""

    def read(self, file: _File, row: int) -> bytes | int | None:
        if self.valid is not None and not file.read(self.valid + row // 8, 1)[0] >> row % 8 & 1:
            return None
        if self.content is None:
            width = struct.calcsize(self.kind)
            return int(struct.unpack(self.kind, file.read(self.values + width * row, width))[0])
        width = struct.calcsize(self.kind) // 2
        begin, end = struct.unpack(self.kind, file.read(self.values + width * row, 2 * width))
        if not 0 <= begin <= end <= self.size:
            raise SourceError(
                f"{file.path}: row {row} of a batch is at {begin} to {end} of {self.size} bytes; copy again"
            )
        return file.read(self.content + begin, end - begin)


@dataclass(frozen=True)
class _Batch:
    """Some rows of a file."""

    path: Path
    rows: int
    columns: dict[str, _Column]


def _read_batches(path: Path, columns: Sequence[str]) -> Iterator[_Batch]:
    """Yield the batches of a file with these columns; a file without one of them is refused."""
    with _opened(path) as file:
        kinds: dict[str, tuple[str, int]] | None = None
        try:
            for kind, header, body in _messages(file):
                if kind == SCHEMA:
                    kinds = dict(_kinds(file, header))
                    if missing := [name for name in columns if name not in kinds]:
                        found = ", ".join(kinds) or "none"
                        raise SourceError(f"{path}: column {missing[0]!r} not found; found {found}")
                elif kind == BATCH and kinds is not None:
                    yield _batch(file, header, body, kinds, columns)
                else:
                    raise SourceError(f"{path}: message of kind {kind}; expected the schema, then batches of rows")
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise SourceError(f"{path}: not a stream of Arrow ({error}); copy the file again") from None
        if kinds is None:
            raise SourceError(f"{path}: not a stream of Arrow (no schema); copy the file again")


def _messages(file: _File) -> Iterator[tuple[int, _Table, int]]:
    """Yield the kind of each message, its header, and the place of its body."""
    place, end = 0, file.size
    while place < end:
        mark, size = struct.unpack("<II", file.read(place, 8))
        if mark != CONTINUATION or size > LONGEST_METADATA:
            raise SourceError(f"{file.path}: not a stream of Arrow at byte {place}; copy the file again")
        if not size:
            return  # the end of the stream
        content = file.read(place + 8, size)
        message = _Table(content, struct.unpack_from("<I", content)[0])
        header = message.table(2)
        if header is None:
            raise SourceError(f"{file.path}: a message without a header at byte {place}; copy the file again")
        body, length = place + 8 + size, message.number(3, "<q")
        if length < 0 or body + length > end:
            raise SourceError(f"{file.path}: {end} bytes, expected at least {body + length}; copy the file again")
        yield message.number(1, "<B"), header, body
        place = body + length
    raise SourceError(f"{file.path}: ends after {end} bytes without the mark of its end; copy the file again")


def _kinds(file: _File, schema: _Table) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the name of each column, its type as ``struct`` writes it, and the number of its buffers."""
    for field in schema.tables(1):
        name, kind, details = field.text(0), field.number(2, "<B"), field.table(3)
        bits = details.number(0, "<i") if kind == INT and details is not None else 0
        if kind in OFFSETS:
            yield name, (OFFSETS[kind], 3)
        elif bits in INTEGERS:
            yield name, (INTEGERS[bits], 2)
        else:
            raise SourceError(
                f"{file.path}: column {name!r} has a type of number {kind}; expected text, bytes or whole numbers"
            )


def _batch(file: _File, header: _Table, body: int, kinds: dict[str, tuple[str, int]], columns: Sequence[str]) -> _Batch:
    if header.table(3) is not None:
        raise SourceError(f"{file.path}: compressed batches; save the dataset again without compression")
    empty = [nulls for _, nulls in header.pairs(1)]
    buffers = [(body + start, size) for start, size in header.pairs(2)]
    if len(empty) != len(kinds) or len(buffers) != sum(count for _, count in kinds.values()):
        raise SourceError(f"{file.path}: {len(buffers)} parts of {len(empty)} columns; copy the file again")
    found, place = {}, 0
    for (name, (kind, count)), nulls in zip(kinds.items(), empty, strict=True):
        (valid, _), (values, _), *content = buffers[place : place + count]
        place += count
        if name in columns:
            found[name] = _Column(kind, valid if nulls else None, values, *(content[0] if content else ()))
    return _Batch(file.path, header.number(0, "<q"), found)


class _Table:
    """A table of FlatBuffers: numbered fields, each of which may be missing."""

    def __init__(self, content: bytes, place: int) -> None:
        self._content, self._place = content, place
        self._fields = place - self._unpack("<i", place)

    def _unpack(self, kind: str, place: int) -> int:
        if place < 0:
            raise IndexError(f"place {place}")
        return int(struct.unpack_from(kind, self._content, place)[0])

    def _field(self, number: int) -> int | None:
        """Return the place of a field, None for a missing one."""
        at = 4 + 2 * number
        offset = self._unpack("<H", self._fields + at) if at < self._unpack("<H", self._fields) else 0
        return self._place + offset if offset else None

    def _target(self, place: int) -> int:
        return place + self._unpack("<I", place)

    def number(self, number: int, kind: str) -> int:
        """Return a number, 0 if the field is missing."""
        place = self._field(number)
        return 0 if place is None else self._unpack(kind, place)

    def table(self, number: int) -> _Table | None:
        place = self._field(number)
        return None if place is None else _Table(self._content, self._target(place))

    def text(self, number: int) -> str:
        place = self._field(number)
        if place is None:
            return ""
        begin = self._target(place)
        return self._content[begin + 4 : begin + 4 + self._unpack("<I", begin)].decode("utf-8")

    def tables(self, number: int) -> Iterator[_Table]:
        for place in self._elements(number, 4):
            yield _Table(self._content, self._target(place))

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """Return a vector of two 64-bit numbers each."""
        return [(self._unpack("<q", place), self._unpack("<q", place + 8)) for place in self._elements(number, 16)]

    def _elements(self, number: int, size: int) -> range:
        place = self._field(number)
        if place is None:
            return range(0)
        begin = self._target(place)
        count = self._unpack("<I", begin)
        if begin + 4 + count * size > len(self._content):
            raise IndexError(f"{count} elements at {begin}")
        return range(begin + 4, begin + 4 + count * size, size)
