"""Audio files through soundfile (WAV, FLAC and others): their lengths, and ranges of their samples.

soundfile is imported when a file is read: synthetic speech needs none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.shares import Array, SourceError


class AudioError(SourceError):
    """An audio file was not found, is unreadable or is of another kind."""


def length(path: Path, rate: int) -> int:
    """Return the number of samples; only the header is read."""
    import soundfile

    try:
        info = soundfile.info(path)
        missing = _missing_bytes(path)
    except (OSError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    _check_kind(path, rate, info.samplerate, info.channels)
    if missing:
        raise AudioError(
            f"{path}: the file is cut short: {missing:,} bytes fewer than its header says; copy the file again"
        )
    return int(info.frames)


def read(path: Path, rate: int, start: int = 0, samples: int | None = None) -> Array:
    """Return samples from -1 to 1, float32: all from ``start`` on, or as many as ``samples`` says."""
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            _check_kind(path, rate, file.samplerate, file.channels)
            file.seek(min(start, file.frames))
            audio: Array = file.read(-1 if samples is None else samples, dtype="float32")
    except (OSError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    if samples is not None and len(audio) != samples:
        raise AudioError(
            f"{path}: expected {samples} samples from {start} on, got {len(audio)}: "
            "the file is shorter than its header or its list says; copy it again"
        )
    return audio


def _missing_bytes(path: Path) -> int:
    """Return how many bytes a WAV file has fewer than its header says; soundfile takes such a file as a shorter one."""
    with path.open("rb") as file:
        head = file.read(8)
    return max(0, 8 + int.from_bytes(head[4:], "little") - path.stat().st_size) if head[:4] == b"RIFF" else 0


def _check_kind(path: Path, rate: int, its_rate: int, channels: int) -> None:
    if (its_rate, channels) != (rate, 1):
        raise AudioError(
            f"{path}: expected {rate} samples per second and 1 channel, got {its_rate} and {channels}; "
            "convert the file or use the data set that the README names"
        )


def _unreadable(path: Path, error: Exception) -> AudioError:
    if not path.is_file():
        return AudioError(f"{path}: no such file; complete the data set or correct the list that names it")
    return AudioError(f"{path}: cannot be read as audio: {error}; copy the file again")


def padded(clips: list[Array], length: int) -> Array:
    """Return the clips as rows of one length, with zeros after the shorter ones."""
    rows = np.zeros((len(clips), length), np.float32)
    for row, clip in zip(rows, clips, strict=True):
        row[: len(clip)] = clip
    return rows
