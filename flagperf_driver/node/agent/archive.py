"""The round's logs as one compressed file: packed once by a child, handed out in pieces, verified by a checksum."""

from __future__ import annotations

import binascii
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Mapping, Sequence

from flagperf_driver.node import processes
from flagperf_driver.node.agent.connections import Message, error
from flagperf_driver.node.folder import is_agents_own, walk

_CHUNK = 1 << 22
_AT_ONCE = 1 << 20
_COMPRESSION = 1  # logs shrink to a tenth at any level, and at this one five times as fast as at the usual
_NAME = "agent.tar.gz"
_MOST_NAMED = 20
GIB = 1 << 30
_RAISE = "to fetch them, set in [cluster] of flagperf.toml a larger"


class LogLimits:
    """How much of one round's logs the controller takes from one host."""

    def __init__(self, max_bytes: float = 4 * GIB, max_entries: float = 100_000) -> None:
        self.max_bytes = max_bytes
        self.max_entries = max_entries

    def refusal(self, size: float, entries: float) -> str | None:
        """Why logs of this size and with so many files and folders are too much, if they are."""
        if size > self.max_bytes:
            return f"the logs are larger than {self.max_bytes / GIB:g} GiB; {_RAISE} max_log_gib"
        if entries > self.max_entries:
            return f"the logs have more than {self.max_entries:g} files and folders; {_RAISE} max_log_entries"
        return None


class Archive:
    """The packed logs; what is asked for before they are packed is answered when they are."""

    def __init__(self, folder: Path, limits: LogLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._wanted: list[int] = []
        self._facts: Mapping[str, Any] | None = None
        try:
            self._pack_into(_nameless(folder))
        except OSError:
            self._pack_into(_in_memory())

    def ask(self, offset: int) -> None:
        self._wanted.append(offset)

    def answers(self) -> Sequence[Message]:
        """What was asked for and can be answered now; RuntimeError where it cannot be packed."""
        if not self._wanted or not self._is_packed():
            return []
        wanted, self._wanted = self._wanted, []
        return [self._chunk(offset) for offset in wanted]

    def _pack_into(self, handle: int, on_disk: bool = True) -> None:
        self._handle = handle
        self._on_disk = on_disk
        self._packing = processes.BackgroundTask(lambda: pack(self._folder, handle, self._limits))

    def _is_packed(self) -> bool:
        if self._facts is None and self._packing.ended():
            try:
                self._facts = self._packing.answer()
            except RuntimeError:
                if not self._on_disk:
                    raise
                # A full disk, most of all: the logs of what filled it are wanted all the more.
                os.close(self._handle)
                self._pack_into(_in_memory(), on_disk=False)
        return self._facts is not None

    def _chunk(self, offset: int) -> Message:
        if self._facts is not None and "refused" in self._facts:
            return {**error(self._facts["refused"]), "limit": True}
        data = binascii.b2a_base64(os.pread(self._handle, _CHUNK, offset), newline=False).decode()
        return {"type": "chunk", "offset": offset, "data": data, **(self._facts or {})}


def _nameless(folder: Path) -> int:
    """An open file that is gone with its last holder."""
    path = folder / _NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    path.unlink()
    return handle


def _in_memory() -> int:
    return os.memfd_create(_NAME)


def pack(folder: Path, handle: int, limits: LogLimits) -> dict[str, Any]:
    """Write the round's files into the open file, and say what that makes; or why they are not packed."""
    refused = _refusal(folder, limits)
    if refused:
        return {"refused": refused}
    import hashlib  # a child's to import
    import tarfile

    files, left_out = 0, []
    with os.fdopen(os.dup(handle), "r+b") as out:
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=_COMPRESSION) as tar:
            for entry in walk(folder):
                name = os.path.relpath(entry.path, folder)
                if is_agents_own(name):
                    continue
                try:
                    source = _open(entry)
                except OSError as error:
                    left_out.append(f"{name}: {error.strerror}")
                    continue
                files += _add(tar, entry, name, source)
        digest = hashlib.sha256()
        out.seek(0)
        for piece in iter(lambda: out.read(_AT_ONCE), b""):
            digest.update(piece)
        size = out.tell()
    return {"size": size, "sha256": digest.hexdigest(), "files": files, "left_out": left_out[:_MOST_NAMED]}


def _refusal(folder: Path, limits: LogLimits) -> str | None:
    """Why the logs in this folder are too much, if they are; a sparse file counts with its whole size."""
    size = entries = 0
    for entry in walk(folder):
        if not is_agents_own(os.path.relpath(entry.path, folder)):
            entries += 1
            with suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
            refused = limits.refusal(size, entries)
            if refused:
                return refused
    return None


def _open(entry: os.DirEntry[str]) -> BinaryIO | None:
    return Path(entry.path).open("rb") if entry.is_file(follow_symlinks=False) else None


def _add(tar: Any, entry: os.DirEntry[str], name: str, source: BinaryIO | None) -> int:
    """One member, and how many files that is; a file that is still written counts with what it has now."""
    import tarfile

    if source is None:
        member = tar.gettarinfo(entry.path, name)
        if member is not None and (member.isdir() or member.issym()):
            tar.addfile(member)
        return 0
    with source:
        member = tarfile.TarInfo(name)
        found = os.fstat(source.fileno())
        member.size, member.mtime, member.mode = found.st_size, found.st_mtime, found.st_mode & 0o777
        tar.addfile(member, _Padded(source, member.size))
    return 1


class _Padded:
    """A file that is not shorter than it was said to be: of one that was cut off meanwhile the rest is zeros."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        try:
            piece = self._source.read(wanted)
        except OSError:
            piece = b""
        self._left -= wanted
        return piece + bytes(wanted - len(piece))
