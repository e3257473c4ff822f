"""WaveGlow's reference scale: LJ Speech's files and lists; size and a step of the full model."""

from __future__ import annotations

import checking
import data
import numpy as np
from common.shares import Draw
from common.speech import recordings

from tests.suites import trials
from tests.suites.tiny_data import ljspeech

SMALLER = {
    "flows": 4, "early_every": 2, "wavenet_layers": 2, "wavenet_channels": 16, "segment_length": 4800,
    "samples_per_item": 4800, "train_batch_size": 4, "eval_batch_size": 2, "learning_rate": 3e-3, "num_workers": 2,
}  # fmt: skip
CUT = ljspeech.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, ljspeech.write)
write = TINY.write
STEP = {"train_batch_size": 1, "segment_length": 1024, "samples_per_item": 1024}
UNTRAINED = r"upsample\.|wavenets\.\d+\.(start|conditions|gates|outputs)\."
"""The last convolution of each flow starts at 0: in the first step, no gradient reaches what is before it."""
FROZEN = "mixings.0.weight"


def by_hand() -> int:
    """Add up the parameters of the published sizes: 12 flows of a WaveNet with 8 layers of 512 channels."""
    mels, group, layers, width, kernel = 80, 8, 8, 512, 3
    total = mels * mels * 1024 + mels  # upsampling
    for flow in range(12):
        channels = group - flow // 4 * 2
        half = channels // 2
        total += channels * channels
        total += width * half + 2 * width  # weight normalisation adds a factor for each output channel
        total += layers * (2 * width * mels * group + 2 * 2 * width)
        total += layers * (2 * width * width * kernel + 2 * 2 * width)
        total += (layers - 1) * (2 * width * width + 2 * 2 * width) + width * width + 2 * width
        total += 2 * half * width + 2 * half
    return total


PARAMETERS = by_hand()


def check_a_short_recording_is_padded_and_each_epoch_has_other_places() -> None:
    folder = TINY.folder("places")
    clips = recordings.Files([folder / ljspeech.SHORT, folder / CUT], ljspeech.RATE)
    reader = data.Reader(clips, 4800, seed=1)
    first, again, other = (reader[Draw(epoch, np.arange(2))].audio for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[1], other[1])
    assert np.abs(first[0, :4000]).max() > 0.2
    assert not first[0, 4000:].any()
