"""Pack the round's logs, or a summary of them, into one compressed file in a child process, and send it in chunks.

The file has a checksum.
"""

from __future__ import annotations

import binascii
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping, Sequence

from flagperf_driver.node import processes
from flagperf_driver.node.agent import log_bound
from flagperf_driver.node.agent.connections import Message, error_message
from flagperf_driver.node.folder import SUMMARY, is_agents_own, walk

_CHUNK = 1 << 22
_READ_BYTES = 1 << 20
_COMPRESSION = 1  # logs shrink to a tenth at any level; this one is five times as fast as the default
_NAME = "agent.tar.gz"
_MOST_LEFT_OUT = 20
GIB = 1 << 30
_HOW_TO_RAISE = "to fetch them, set in [cluster] of flagperf.toml a larger"


MAX_GIB, MAX_ENTRIES, MAX_WHOLE_HOSTS = 4.0, 100_000, 32
"""The limits, unless [cluster] of flagperf.toml sets others."""


class LogLimits:
    """The maximum size of one round's logs that the controller fetches from one host."""

    def __init__(
        self,
        max_bytes: float = MAX_GIB * GIB,
        max_entries: float = MAX_ENTRIES,
        max_whole_hosts: float = MAX_WHOLE_HOSTS,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.max_whole_hosts = max_whole_hosts
        """With more hosts, most of them send a summary, and their logs stay there."""

    def refusal(self, size: float, entries: float) -> str | None:
        """Return why logs of this size and with this many files and folders exceed the limits, or None."""
        if size > self.max_bytes:
            return f"the logs are larger than {self.max_bytes / GIB:g} GiB; {_HOW_TO_RAISE} max_log_gib"
        if entries > self.max_entries:
            return f"the logs have more than {self.max_entries:g} files and folders; {_HOW_TO_RAISE} max_log_entries"
        return None


class Archive:
    """The packed logs, or their summary. Requests that arrive while it is being packed are answered afterwards."""

    def __init__(self, folder: Path, pack_into: Callable[[int], Mapping[str, Any]]) -> None:
        """``pack_into`` packs into an open file, in the child process."""
        self._pack = pack_into
        self._requested: list[int] = []
        self._facts: Mapping[str, Any] | None = None
        try:
            self._pack_into(_unnamed_file(folder))
        except OSError:
            self._pack_into(_memory_file())

    def request(self, offset: int) -> None:
        self._requested.append(offset)

    def replies(self) -> Sequence[Message]:
        """Return the requested chunks once the logs are packed; raise RuntimeError if packing failed."""
        if not self._requested or not self._is_packed():
            return []
        offsets, self._requested = self._requested, []
        return [self._chunk(offset) for offset in offsets]

    def _pack_into(self, handle: int, on_disk: bool = True) -> None:
        self._handle = handle
        self._on_disk = on_disk
        self._packing = processes.BackgroundTask(lambda: self._pack(handle))

    def _is_packed(self) -> bool:
        if self._facts is None and self._packing.ended():
            try:
                self._facts = self._packing.result()
            except RuntimeError:
                if not self._on_disk:
                    raise
                # Pack into memory, for example because the disk is full: the logs may show what filled it.
                os.close(self._handle)
                self._pack_into(_memory_file(), on_disk=False)
        return self._facts is not None

    def _chunk(self, offset: int) -> Message:
        if self._facts is not None and "refused" in self._facts:
            return {**error_message(self._facts["refused"]), "limit": True}
        data = binascii.b2a_base64(os.pread(self._handle, _CHUNK, offset), newline=False).decode()
        return {"type": "chunk", "offset": offset, "data": data, **(self._facts or {})}


def _unnamed_file(folder: Path) -> int:
    """Create and open a file without a name; the kernel deletes it when its last user closes it."""
    path = folder / _NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    path.unlink()
    return handle


def _memory_file() -> int:
    return os.memfd_create(_NAME)


def pack(folder: Path, handle: int, limits: LogLimits) -> dict[str, Any]:
    """Write the round's files into the open file; return its size and checksum, or why the logs are not packed."""
    log_bound.join(folder)
    refusal = _refusal(folder, limits)
    if refusal:
        return {"refused": refusal}
    files, left_out = 0, []
    with os.fdopen(os.dup(handle), "r+b") as out, _tar(out) as tar:
        for entry in walk(folder):
            name = os.path.relpath(entry.path, folder)
            if is_agents_own(name) or name == SUMMARY:
                continue
            try:
                source = Path(entry.path).open("rb") if entry.is_file(follow_symlinks=False) else None  # noqa: SIM115
            except OSError as error:
                left_out.append(f"{name}: {error.strerror}")
                continue
            files += _add(tar, entry, name, source)
    return {**_size_and_sha256(handle), "files": files, "left_out": left_out[:_MOST_LEFT_OUT]}


def pack_summary(folder: Path, handle: int, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the summary of the round's files, and its short files, into the open file; return its size and checksum.

    They are the texts of one compressed JSON object, which costs the controller less than a tar archive.
    """
    import json
    import zlib

    from flagperf_driver.node.logs import summary

    try:
        body = summary.summarize(folder, summary.Request.from_json(request))
        texts = {SUMMARY: json.dumps(body, allow_nan=False, separators=(",", ":"))}
    except Exception as error:  # the controller must receive the reason
        return {"refused": f"the logs could not be summed up: {type(error).__name__}: {error}"}
    paths = (folder / name for name in summary.SHORT_FILES)
    texts.update({path.name: path.read_text("utf-8", "backslashreplace") for path in paths if path.is_file()})
    with os.fdopen(os.dup(handle), "r+b") as out:
        out.write(zlib.compress(json.dumps(texts).encode(), _COMPRESSION))
    return {**_size_and_sha256(handle), "files": len(texts), "left_out": []}


def _tar(out: BinaryIO) -> Any:
    import tarfile  # only the child process imports it

    return tarfile.open(fileobj=out, mode="w:gz", compresslevel=_COMPRESSION)


def _size_and_sha256(handle: int) -> dict[str, Any]:
    import hashlib

    digest = hashlib.sha256()
    with os.fdopen(os.dup(handle), "r+b") as out:
        out.seek(0)
        for block in iter(lambda: out.read(_READ_BYTES), b""):
            digest.update(block)
        return {"size": out.tell(), "sha256": digest.hexdigest()}


def _refusal(folder: Path, limits: LogLimits) -> str | None:
    """Return why the logs in this folder exceed the limits, or None; a sparse file counts with its whole size."""
    size = entries = 0
    for entry in walk(folder):
        if not is_agents_own(os.path.relpath(entry.path, folder)):
            entries += 1
            with suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
            refusal = limits.refusal(size, entries)
            if refusal:
                return refusal
    return None


def _add(tar: Any, entry: os.DirEntry[str], name: str, source: BinaryIO | None) -> int:
    """Add one member and return the number of files added; a file that still grows is added with its present size."""
    import tarfile

    if source is None:
        member = tar.gettarinfo(entry.path, name)
        if member is not None and (member.isdir() or member.issym()):
            tar.addfile(member)
        return 0
    with source:
        member = tarfile.TarInfo(name)
        status = os.fstat(source.fileno())
        member.size, member.mtime, member.mode = status.st_size, status.st_mtime, status.st_mode & 0o777
        tar.addfile(member, _Padded(source, member.size))
    return 1


class _Padded:
    """A file with at least the given size: if it was truncated meanwhile, the rest is zeros."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int) -> bytes:
        count = min(size, self._left)
        try:
            data = self._source.read(count)
        except OSError:
            data = b""
        self._left -= count
        return data + bytes(count - len(data))
