r"""FlagPerf's lists of LibriSpeech: the folder on the first line, then ``<path>\t<samples>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.shares import Array
from common.speech import audio
from common.speech.audio import AudioError


@dataclass(frozen=True)
class Listed:
    """Recordings in files, whose lengths the list names."""

    paths: Sequence[Path]
    lengths: Sequence[int]
    rate: int

    def __len__(self) -> int:
        return len(self.paths)

    def samples(self, index: int) -> int:
        return self.lengths[index]

    def read(self, index: int, start: int, samples: int) -> Array:
        return audio.read(self.paths[index], self.rate, start, samples)


def read(path: Path, rate: int) -> Listed:
    """Return a list's recordings. If its folder does not exist, it is the list's own: data may lie elsewhere here."""
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, ValueError) as error:
        raise AudioError(f"{path}: cannot be read as a list of recordings: {error}") from error
    folder = Path(first) if Path(first).is_dir() else path.parent
    paths, lengths = [], []
    for number, line in enumerate(lines, 2):
        file, _, samples = line.partition("\t")
        if not file or not samples.isdecimal():
            raise AudioError(f"{path}, line {number}: expected <path>, a tab and the samples, got {line[:80]!r}")
        paths.append(folder / file)
        lengths.append(int(samples))
    if not paths:
        raise AudioError(f"{path}: expected a folder, and then lines of <path>, a tab and the samples; got none")
    return Listed(paths, lengths, rate)
