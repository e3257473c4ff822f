"""The LJ Speech data set: ``wavs/<name>.wav``, and lists whose lines are ``<path>|<text>``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from common.speech.audio import AudioError

RATE = 22050
"""Samples per second."""


class Recording(NamedTuple):
    """A spoken sentence."""

    audio: Path
    text: str


def read_list(path: Path, wavs: Path) -> list[Recording]:
    """Return a list's recordings. Its lines may name other files, such as ``mels/<name>.pt``: only the name is used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise AudioError(f"{path}: cannot be read as a list of recordings: {error}") from error
    recordings = []
    for number, line in enumerate(lines, 1):
        file, separator, text = line.partition("|")
        if not (name := Path(file.strip()).stem) or not separator or not text.strip():
            raise AudioError(f"{path}, line {number}: expected <path>|<text>, got {line[:80]!r}")
        recordings.append(Recording(wavs / f"{name}.wav", text.strip()))
    if not recordings:
        raise AudioError(f"{path}: expected lines <path>|<text>, got an empty file")
    return recordings
