"""LJ Speech: recordings of one channel at 22,050 Hz, and the lists of FlagPerf's WaveGlow and Tacotron2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

RATE = 22050
TRAIN, EVAL = 8, 2
"""Recordings of each list."""
SHORT, CUT = (f"LJSpeech-1.1/wavs/LJ001-{number:04d}.wav" for number in (1, 2))
"""A recording that is shorter than a segment, and one that a test may cut."""


def write(folder: Path) -> None:
    """Write recordings of equal loudness, and the lists of both suites, which may have one data directory."""
    rng = np.random.default_rng(7)
    (folder / "LJSpeech-1.1/wavs").mkdir(parents=True, exist_ok=True)
    (folder / "filelists").mkdir(exist_ok=True)
    names = [f"LJSpeech-1.1/wavs/LJ001-{number:04d}.wav" for number in range(1, TRAIN + EVAL + 1)]
    for name in names:
        seconds = np.arange(4000 if name == SHORT else rng.integers(9000, 12000)) / RATE
        tone = 0.3 * np.sin(2 * np.pi * rng.uniform(200, 2000) * seconds)
        soundfile.write(folder / name, tone + rng.normal(0, 0.01, len(tone)), RATE, subtype="PCM_16")
    for part, chosen in (("train", names[:TRAIN]), ("val", names[TRAIN:])):
        for kind, place in (("audio", "wavs/{}.wav"), ("mel", "mels/{}.pt")):
            stems = [Path(name).stem for name in chosen]
            lines = [f"LJSpeech-1.1/{place.format(stem)}|{text(stem)}\n" for stem in stems]
            (folder / f"filelists/ljs_{kind}_text_{part}_filelist.txt").write_text("".join(lines), encoding="utf-8")


def text(name: str) -> str:
    """Return the words of a recording."""
    return "The words of " + " ".join("abcdefghij"[int(digit)] for digit in name[-4:])
