"""A rank's heartbeat: 32 bytes in a memory-mapped file that the rank writes each step and the agent reads."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

INIT, TRAIN, EVALUATE, DONE, CHECKPOINT = range(5)
PHASES = ("init", "training", "evaluation", "done", "checkpoint")

_LAYOUT = struct.Struct("<QQdB")
_SIZE = 32


class Beat(NamedTuple):
    """The last beat: the number of beats so far, its step, its time on the monotonic clock, and its phase."""

    beats: int
    step: int
    time: float
    phase: int


class Heartbeat:
    """Writes a rank's beats to ``path``, or to memory only if ``path`` is None."""

    def __init__(self, path: Path | None) -> None:
        self._beats = 0
        self._map = _mapped(path) if path is not None else mmap.mmap(-1, _SIZE)

    def beat(self, step: int, phase: int) -> None:
        self._beats += 1
        # Copy packed bytes at once: packing in place would let a reader see an incomplete number.
        self._map[: _LAYOUT.size] = _LAYOUT.pack(self._beats, step, time.monotonic(), phase)


def _mapped(path: Path) -> mmap.mmap:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(handle, _SIZE)
        return mmap.mmap(handle, _SIZE)
    finally:
        os.close(handle)


def read_heartbeat(path: Path) -> Beat | None:
    """Return the rank's last beat; None before the first beat."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _LAYOUT.size:
        return None
    beat = Beat(*_LAYOUT.unpack_from(raw))
    return beat if beat.beats else None
