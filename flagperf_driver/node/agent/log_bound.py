"""Bound a rank's log where it is written: all its [PerfLog] lines stay, and the last 64 MiB of the rest.

The rank appends to its log itself. The agent reads behind it, copies older [PerfLog] lines to a file beside the log,
each time after the offset to which it then frees the log, and lets the kernel free the disk space where they were, so
that all else keeps its offset. At the end ``join`` makes one file of both.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from flagperf_driver import perflog

KEPT_BYTES = 64 << 20
_AT_ONCE = 16 << 20
_MARK = perflog.MARK.encode()
_RECORD = re.compile(re.escape(_MARK) + rb"[^\n]*")
_FREE_SPACE = 1 | 2  # FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE
_PREFIX, _SUFFIX = "agent.", ".records"
_libc = ctypes.CDLL(None, use_errno=True)


class LogBound:
    """The bound of one log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._records = log.with_name(_PREFIX + log.name + _SUFFIX)
        self._freed = 0  # bytes, from the beginning

    def apply(self, read: int) -> None:
        """Free all but the last 64 MiB of the bytes that were read; OSError if the file system cannot, or is full."""
        while read - self._freed >= KEPT_BYTES + _AT_ONCE:
            with self._log.open("r+b", buffering=0) as log, self._records.open("ab", buffering=0) as records:
                self._freed += _free(log.fileno(), self._freed, records.fileno())


def _free(log: int, begin: int, records: int) -> int:
    """Move the [PerfLog] lines of the next bytes, and free all bytes up to their end; return their number.

    The bytes before are freed again: a block of the disk that two calls share is freed only as a whole.
    """
    block = os.pread(log, _AT_ONCE, begin)
    # Without the end of a line: up to the last mark, of which the last bytes may be a part.
    end = block.rfind(b"\n") + 1 or max(block.rfind(_MARK), 0) or len(block) - len(_MARK)
    lines = b"%d\n" % (begin + end) + b"".join(line + b"\n" for line in _RECORD.findall(block[:end]))
    size = os.fstat(records).st_size
    if os.write(records, lines) < len(lines) or _libc.fallocate(
        log, _FREE_SPACE, ctypes.c_long(0), ctypes.c_long(begin + end)
    ):
        os.ftruncate(records, size)
        raise OSError(ctypes.get_errno(), "the disk is full, or its file system cannot free a part of a file")
    return end


def join(folder: Path) -> None:
    """Make one file of each log and the [PerfLog] lines that were moved from it, also those that a dead agent left."""
    for records in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        log = folder / records.name[len(_PREFIX) : -len(_SUFFIX)]
        new = log.with_name(f".{log.name}.new")
        with suppress(OSError):
            try:
                _join(log, records, new)
            finally:
                new.unlink()


def _join(log: Path, records: Path, new: Path) -> None:
    with log.open("rb") as rest, records.open("rb") as lines, new.open("wb") as out:
        begin = os.lseek(rest.fileno(), 0, os.SEEK_DATA)
        if begin:  # else an agent that was killed has joined them
            rest.seek(begin)
            first = rest.read(_AT_ONCE).lstrip(b"\0")  # the hole may end within a block of the disk
            freed = rest.tell() - len(first)
            for line in lines:
                if line.startswith(_MARK):
                    out.write(line)
                elif int(line) > freed:
                    break  # the agent was killed before it freed them: they are still in the log
            out.write(b"pytest-flagperf: left out %d bytes of other output here\n" % (freed - out.tell()))
            out.write(first)
            shutil.copyfileobj(rest, out)
    if begin:
        new.replace(log)
    records.unlink()
