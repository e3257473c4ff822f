"""Unpack a host's archive: regular files and folders only, created below an open folder, within limits.

``tarfile`` only reads headers here. Its extraction resolves paths by name, so that links in an archive can
lead out of the folder (CVE-2025-4517), and it reads extended headers of any size into memory.
"""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import shutil
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from flagperf_driver.node.agent.archive import LogLimits
from flagperf_driver.node.folder import SUMMARY
from flagperf_driver.node.logs.summary import SHORT_FILES
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.replies import TEXT, Shape, parse_object

_AT_ONCE = 1 << 20
_LONGEST_HEADER = 1 << 16  # bytes of an extended header
_LONGEST_NAME = 1024  # bytes of a whole path; a single name may have 255
_DEEPEST = 32
_NAMED = 3
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_DROPPED = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "named pipe",
}
_LONGEST_SUMMARY = 1 << 28
_SUMMARY: Shape = {SUMMARY: TEXT, **{f"{name}?": TEXT for name in SHORT_FILES}}
DEFAULT_LIMITS = LogLimits()
# The path exists already, or another entry is where a folder should be.
_CLASHES = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)


class LogsTooLarge(HostError):
    """A host's logs exceed the limits."""


def check_limits(limits: LogLimits, size: int, entries: int = 0) -> None:
    """Raise LogsTooLarge if the number of bytes, or of files and folders, exceeds the limits."""
    if reason := limits.refusal(size, entries):
        raise LogsTooLarge(reason)


class DamagedArchive(HostError):
    """The archive is truncated, damaged, or has entries that no agent writes."""


@dataclass
class SkippedEntries:
    """The entries that were not unpacked, by reason."""

    count: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        self.count[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) < _NAMED:
            names.append(ascii(name[:_LONGEST_NAME]) if len(name) <= 80 else ascii(name[:80]) + "...")

    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each reason, with the number of entries and the first names."""
        return tuple(
            f"{count} {'entry' if count == 1 else 'entries'} of the logs left out ({reason}): "
            + ", ".join(self.names[reason])
            + (", ..." if count > len(self.names[reason]) else "")
            for reason, count in self.count.items()
        )


def unpack(archive: IO[bytes], folder: Path, limits: LogLimits) -> tuple[str, ...]:
    """Replace ``folder`` by the content of the archive, completely or not at all.

    Return sentences on the entries that were left out.
    """
    with _replaced(folder) as new, _opened(new) as root:
        return _extract(_Source(archive, limits), _TargetFolder(root), limits).sentences()


def unpack_summary(host: str, archive: IO[bytes], folder: Path, limits: LogLimits) -> None:
    """Replace ``folder`` by a host's summary and short files, which are the texts of one compressed JSON object."""
    most = int(min(limits.max_bytes, _LONGEST_SUMMARY))
    with _replaced(folder) as new:
        packed = zlib.decompressobj()
        content = packed.decompress(archive.read(), most)
        if packed.unconsumed_tail:
            raise LogsTooLarge(f"the summary of the logs is larger than {most} bytes")
        texts = parse_object(host, content, _SUMMARY, "the summary of the logs")
        for name in (SUMMARY, *SHORT_FILES):
            if name in texts:
                Path(new, name).write_text(texts[name], "utf-8", "backslashreplace")


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``folder`` if the block does not fail."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".logs-{secrets.token_hex(8)}")
    new.mkdir()
    try:
        yield new
        if os.path.lexists(folder):
            with tempfile.TemporaryDirectory(prefix=".logs-", dir=folder.parent, ignore_cleanup_errors=True) as old:
                folder.rename(Path(old, "old"))  # a link is moved, not followed
                new.rename(folder)
        else:
            new.rename(folder)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DamagedArchive(f"the logs cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _extract(source: _Source, target: _TargetFolder, limits: LogLimits) -> SkippedEntries:
    left_out = SkippedEntries()
    for number, entry in enumerate(_entries(source), 1):
        check_limits(limits, 0, max(number, target.folders))
        reason = _DROPPED.get(entry.kind) or _wrong_name(entry.name) or target.add(entry, source)
        if reason:
            left_out.add(reason, entry.name)
    return left_out


def _wrong_name(name: str) -> str | None:
    """Return the reason why no file may have this name; None if it may."""
    parts = _parts(name)
    if any(part in ("", ".", "..") for part in parts):
        return "absolute path or '..'"
    if not name.isprintable():
        return "control characters or not UTF-8"
    too_long = any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(name)) > _LONGEST_NAME
    return "name too long" if too_long or len(parts) > _DEEPEST else None


def _parts(name: str) -> list[str]:
    return name.removesuffix("/").split("/")


# -- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One entry of the archive; its content follows it."""

    name: str
    kind: bytes
    size: int


class _Source:
    """The uncompressed archive, read once and at most up to the limit."""

    def __init__(self, archive: IO[bytes], limits: LogLimits) -> None:
        self._stream = gzip.GzipFile(fileobj=archive, mode="rb")
        self._limits = limits
        self.at = 0

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise DamagedArchive("the logs cannot be unpacked: the archive is truncated")
        self.at += size
        return data

    def pieces(self, size: int) -> Iterator[bytes]:
        check_limits(self._limits, self.at + size)
        while size:
            data = self._read(min(size, _AT_ONCE))
            size -= len(data)
            yield data


def _entries(source: _Source) -> Iterator[Entry]:
    """Yield every file, folder, link and device, with the name and size of its extended headers."""
    name, size = None, None
    while True:
        try:
            block = b"".join(source.pieces(tarfile.BLOCKSIZE))
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            return
        if header.size < 0:
            raise DamagedArchive(f"the logs cannot be unpacked: an entry of {header.size} bytes")
        if header.type in (*_PAX, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            content = _small(source, header.size)
            if header.type in _PAX:
                name, size = _pax(content)
            elif header.type == tarfile.GNUTYPE_LONGNAME:
                name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            continue
        entry = Entry(name if name is not None else header.name, header.type, header.size if size is None else size)
        name, size = None, None
        yield from _with_content(source, entry)


def _with_content(source: _Source, entry: Entry) -> Iterator[Entry]:
    """Yield the entry, whose content the caller may read; skip the rest of the content."""
    if entry.kind not in (*_FILES, tarfile.DIRTYPE, *_DROPPED):
        raise DamagedArchive(
            f"the logs cannot be unpacked: an entry of type {entry.kind!r}; expected a file or a folder"
        )
    end = source.at + (_blocks(entry.size) if entry.kind in _FILES else 0)
    yield entry
    for _ in source.pieces(end - source.at):
        pass


def _small(source: _Source, size: int) -> bytes:
    """Return the content of an extended header."""
    if size > _LONGEST_HEADER:
        raise DamagedArchive(
            f"the logs cannot be unpacked: a header of {size} bytes; expected at most {_LONGEST_HEADER}"
        )
    return b"".join(source.pieces(_blocks(size)))[:size]


def _pax(content: bytes) -> tuple[str | None, int | None]:
    """Return the name and the size of the next entry from an extended header of records ``LENGTH KEY=VALUE``."""
    records: dict[bytes, bytes] = {}
    while content:
        digits, space, _ = content[:10].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = content[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not equals or length > len(content) or not value.endswith(b"\n"):
            raise DamagedArchive("the logs cannot be unpacked: a damaged extended header")
        records[key] = value[:-1]
        content = content[length:]
    name, size = records.get(b"path"), records.get(b"size")
    if size is not None and (not size.isdigit() or len(size) > 20):
        raise DamagedArchive("the logs cannot be unpacked: a damaged extended header")
    return name.decode("utf-8", "surrogateescape") if name is not None else None, int(size) if size else None


def _blocks(size: int) -> int:
    """Return the size rounded up to whole blocks."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


# -- writing ----------------------------------------------------------------------------------------------


class _TargetFolder:
    """The open folder in which entries are created: no path is resolved by name and no link is followed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.folders = 0

    def add(self, entry: Entry, source: _Source) -> str | None:
        """Create the file or the folder; return the reason if another entry has its name."""
        *above, name = _parts(entry.name)
        try:
            with self._folder(above) as folder:
                if entry.kind not in _FILES:
                    os.close(self._below(name, folder))
                    return None
                handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _safe(), 0o644, dir_fd=folder)
                with os.fdopen(handle, "wb") as file:
                    for piece in source.pieces(entry.size):
                        file.write(piece)
        except OSError as error:
            if error.errno in _CLASHES:
                return "another entry has that name"
            raise
        return None

    @contextmanager
    def _folder(self, names: Sequence[str]) -> Iterator[int]:
        handle = os.dup(self._root)
        try:
            for name in names:
                below = self._below(name, handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _below(self, name: str, folder: int) -> int:
        """Open a folder inside a folder; create it if it is missing."""
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
            self.folders += 1
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _safe(), dir_fd=folder)


def _safe() -> int:
    """Return the flags that follow no link; Windows, which unpacks no logs, does not have them."""
    return os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _safe())
    try:
        yield handle
    finally:
        os.close(handle)
