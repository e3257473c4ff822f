"""The part of the files that a rank reads: of the data folder, or of a temporary file without a name."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KEPT_OPEN = 128
"""So many files stay open: a folder may have more of them than a process may open."""
_PIECE = 1 << 20
_WRITTEN_BACK_S = 300
"""Linux writes changed pages to the storage long before, by default after half a minute."""


@dataclass(frozen=True)
class Extent:
    """A part of a file."""

    path: str
    start: int
    size: int

    def in_sequence(self, block: int) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each block; the last one may be shorter."""
        stop = self.start + self.size
        return ((at, min(block, stop - at)) for at in range(self.start, stop, block))

    def at_random(self, block: int) -> list[tuple[int, int]]:
        """Return offset and size of each whole block at a multiple of its size; one shorter block if there is none."""
        first, stop = -(-self.start // block) * block, self.start + self.size
        return [(at, block) for at in range(first, stop - block + 1, block)] or [(self.start, min(block, self.size))]


class Reader:
    """Reads extents that are not in Linux's cache of files."""

    def __init__(self, advice: int) -> None:
        self._advice = advice
        self._open: dict[str, int] = {}

    def read(self, extent: Extent, at: int, buffer: memoryview) -> int:
        """Read from this offset of the file into the whole buffer; return the number of bytes."""
        file = self._open.get(extent.path)
        if file is None:
            file = self._opened(extent)
        if count := os.preadv(file, [buffer], at):
            return count
        raise OSError(f"{extent.path} ends before byte {at}: expected a file that nobody changes while it is measured")

    def _opened(self, extent: Extent) -> int:
        if len(self._open) >= KEPT_OPEN:
            os.close(self._open.pop(next(iter(self._open))))
        file = self._open[extent.path] = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
        self.drop(file, extent)
        os.posix_fadvise(file, 0, 0, self._advice)
        return file

    @staticmethod
    def drop(file: int, extent: Extent) -> None:
        """Remove the extent from the cache; changed pages must have been written before."""
        os.posix_fadvise(file, extent.start, extent.size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close all files, so that the next read of each drops what is in the cache."""
        while self._open:
            os.close(self._open.popitem()[1])


def of_folder(folder: Path, most: int, rank: int, ranks: int) -> list[Extent]:
    """Return this rank's part of the folder's largest files, of at most ``most`` bytes: ranks do not share a byte."""
    files = sorted(_files(folder), reverse=True)
    total = min(sum(size for size, *_ in files), most * ranks)
    begin, end = (total * number // ranks for number in (rank, rank + 1))
    extents, at, now = [], 0, time.time()
    for size, path, changed in files:
        start, stop = max(begin, at), min(end, at + size)
        if start < stop:
            if now - changed < _WRITTEN_BACK_S:
                _write_back(path)
            extents.append(Extent(path, start - at, stop - start))
        at += size
    return extents


def _files(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield size, path and time of the last change of every file."""
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)  # noqa: PTH118 - a Path for each of a million files takes longer
            with contextlib.suppress(FileNotFoundError):  # a link to nothing
                found = os.stat(path)  # noqa: PTH116
                if stat.S_ISREG(found.st_mode):
                    yield found.st_size, path, found.st_ctime


def _write_back(path: str) -> None:
    """Write changed pages to the storage: they would stay in the cache."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # not on every read-only file system
        os.fsync(file)
    os.close(file)


def temporary(size: int, folder: str | None = None) -> Extent:
    """Write random bytes to a new file that has no name, so that nothing remains of it however the process ends.

    The file stays open until then, and the kernel has a path of open files, by which it can be opened again.
    """
    file = _without_name(folder or tempfile.gettempdir())
    left = size
    while left > 0:
        left -= os.write(file, os.urandom(min(left, _PIECE)))  # a storage may compress other bytes
    os.fsync(file)
    return Extent(f"/proc/self/fd/{file}", 0, size)


def _without_name(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    file, path = tempfile.mkstemp(dir=folder)  # a file system without such files
    Path(path).unlink()
    return file


def size(extents: Sequence[Extent]) -> int:
    return sum(extent.size for extent in extents)


def fetched() -> int | None:
    """Return the bytes that this process has caused to be read from a storage; None if Linux does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    except (OSError, StopIteration):
        return None
