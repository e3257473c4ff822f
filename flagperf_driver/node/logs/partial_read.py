"""Read parts of a long file, in a time that does not depend on its length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 2048


def read_lines(path: Path, at_most: float = math.inf) -> Iterator[bytes]:
    """Yield whole lines with their ends: all of a file of at most ``at_most`` bytes, else those of blocks evenly apart.

    The first and the last block are those of the file; lines longer than a block are skipped.
    """
    with path.open("rb") as source:
        size = source.seek(0, 2)
        source.seek(0)
        if size <= at_most:
            yield from source
            return
        blocks = max(int(at_most) // _BLOCK, 2)
        for number in range(blocks):
            start = (size - _BLOCK) * number // (blocks - 1)
            source.seek(start)
            lines = source.read(_BLOCK).splitlines(keepends=True)
            # The first and the last line of a block may be truncated.
            yield from lines[1 if start else 0 : None if number == blocks - 1 else -1]
