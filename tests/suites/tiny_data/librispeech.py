"""LibriSpeech: FLAC recordings at 16 kHz in folders, and the lists of FlagPerf's Wav2Vec2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
PARTS = {"train-full-960": 12, "dev-other": 4}
"""Recordings of each list."""
CUT = "train-full-960/2.flac"
"""A recording that a test may cut."""


def write(folder: Path) -> None:
    """Write recordings of two lengths, and both lists; their first line names a folder of another machine."""
    rng = np.random.default_rng(7)
    for part, count in PARTS.items():
        (folder / part).mkdir(parents=True)
        lines = ["/another/machine/LibriSpeech"]
        for number in range(count):
            samples = int(rng.integers(3200, 4000)) + 3200 * (number % 2)
            seconds = np.arange(samples) / RATE
            tones = 0.3 * np.sin(2 * np.pi * rng.uniform(200, 4000) * seconds * (1 + seconds))
            soundfile.write(folder / part / f"{number}.flac", tones + rng.normal(0, 0.01, samples), RATE)
            lines.append(f"{part}/{number}.flac\t{samples}")
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
