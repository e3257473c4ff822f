"""The part of the files that a rank reads: of the data folder, or of a temporary file without a name."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PIECE = 1 << 20


@dataclass(frozen=True)
class Extent:
    """A part of an open file."""

    file: int
    start: int
    size: int

    def drop(self) -> None:
        """Remove the part from Linux's cache of files; changed pages must have been written before."""
        os.posix_fadvise(self.file, self.start, self.size, os.POSIX_FADV_DONTNEED)

    def blocks(self, block: int) -> Iterator[tuple[int, int]]:
        """Yield file and offset of every whole block."""
        first = -(-self.start // block) * block
        return ((self.file, at) for at in range(first, self.start + self.size - block + 1, block))


def of_folder(folder: Path, most: int, rank: int, ranks: int) -> list[Extent]:
    """Return this rank's part of the folder's largest files, of at most ``most`` bytes: ranks do not share a byte."""
    found = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    files = sorted(((file.stat().st_size, file) for file in found if file.is_file()), reverse=True)
    total = min(sum(size for size, _ in files), most * ranks)
    begin, end = (total * number // ranks for number in (rank, rank + 1))
    extents, at = [], 0
    for size, file in files:
        start, stop = max(begin, at), min(end, at + size)
        if start < stop:
            opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # not on every read-only file system
                os.fsync(opened)  # pages that were not written yet stay in the cache
            extents.append(Extent(opened, start - at, stop - start))
        at += size
    return extents


def temporary(size: int, folder: str | None = None) -> Extent:
    """Write random bytes to a new file that has no name, so that nothing remains of it however the process ends."""
    file = _without_name(folder or tempfile.gettempdir())
    left = size
    while left > 0:
        left -= os.write(file, os.urandom(min(left, _PIECE)))  # a storage may compress other bytes
    os.fsync(file)
    return Extent(file, 0, size)


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
