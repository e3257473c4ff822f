"""A rank's sign of life: 32 bytes in a mapped file, written at a microsecond a step, read by the agent."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

INIT, TRAIN, EVALUATE, DONE = range(4)
PHASES = ("init", "training", "evaluation", "done")

_LAYOUT = struct.Struct("<QQdB")
_SIZE = 32


class Beat(NamedTuple):
    """The last beat: how many there were, at which step, when (by the monotonic clock), in which phase."""

    beats: int
    step: int
    time: float
    phase: int


class Heartbeat:
    """Beats into ``path``; without a path into memory that nobody reads."""

    def __init__(self, path: Path | None) -> None:
        self._beats = 0
        self._map = _mapped(path) if path is not None else mmap.mmap(-1, _SIZE)

    def beat(self, step: int, phase: int) -> None:
        self._beats += 1
        # One copy of packed bytes: packing in place would let a reader see half of a number.
        self._map[: _LAYOUT.size] = _LAYOUT.pack(self._beats, step, time.monotonic(), phase)


def _mapped(path: Path) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(handle, _SIZE)
        return mmap.mmap(handle, _SIZE)
    finally:
        os.close(handle)


def read_heartbeat(path: Path) -> Beat | None:
    """The rank's last beat; None before the first one."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _LAYOUT.size:
        return None
    beat = Beat(*_LAYOUT.unpack_from(raw))
    return beat if beat.beats else None
