"""Reading some of a long file: enough to see its course, in a time that does not grow with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 2048


def read_lines(path: Path, at_most: float = math.inf) -> Iterator[bytes]:
    """Whole lines, with their ends: all of a file of that many bytes, of a longer one blocks evenly apart.

    The first and the last block are the file's own; a line that is longer than a block is passed over.
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
            found = source.read(_BLOCK).splitlines(keepends=True)
            # The ends of a block lie somewhere in a line.
            yield from found[1 if start else 0 : None if number == blocks - 1 else -1]
