"""Changes that damage one file of a folder of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Change = Callable[[Path], object]


def cut(name: str, size: int) -> Change:
    """Return a change that shortens a file by some bytes."""
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-size])


def put(name: str, content: str | bytes) -> Change:
    """Return a change that writes another file."""
    return lambda path: (path / name).write_bytes(content.encode() if isinstance(content, str) else content)


def remove(name: str) -> Change:
    return lambda path: (path / name).unlink()
