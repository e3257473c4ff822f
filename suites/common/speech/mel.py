"""The mel scale of Slaney's Auditory Toolbox: bands as wide as the ear's, linear up to 1 kHz and logarithmic above."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from common.shares import Array

LINEAR_HZ = 200 / 3  # Hz of one mel below the break
BREAK_HZ = 1000.0
BREAK_MEL = BREAK_HZ / LINEAR_HZ
LOG_STEP = np.log(6.4) / 27  # above the break, 27 mels are a factor of 6.4


class MelShape(NamedTuple):
    """What a log-mel spectrogram is made with."""

    rate: int
    """Samples per second."""
    fft: int
    """Samples of a Fourier transform; its Hann window is as long."""
    hop: int
    """Samples from one frame to the next."""
    mels: int
    low: float
    """Hz where the first band begins."""
    high: float
    """Hz where the last band ends."""
    floor: float = 1e-5
    """The least value of a band before the logarithm."""

    def frames(self, samples: int) -> int:
        """Return the number of frames of so many samples."""
        return 1 + samples // self.hop


def to_mel(hertz: Array) -> Array:
    """Convert frequencies to mels."""
    above = BREAK_MEL + np.log(np.maximum(hertz, BREAK_HZ) / BREAK_HZ) / LOG_STEP
    mels: Array = np.where(hertz < BREAK_HZ, hertz / LINEAR_HZ, above)
    return mels


def to_hertz(mels: Array) -> Array:
    """Convert mels to frequencies."""
    above = BREAK_HZ * np.exp(LOG_STEP * (np.maximum(mels, BREAK_MEL) - BREAK_MEL))
    hertz: Array = np.where(mels < BREAK_MEL, mels * LINEAR_HZ, above)
    return hertz


def filterbank(shape: MelShape) -> Array:
    """Return the triangular bands, (mels, fft // 2 + 1), each of the same area."""
    low, high = to_mel(np.array([shape.low, shape.high]))
    edges = to_hertz(np.linspace(low, high, shape.mels + 2))[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    bins = np.linspace(0, shape.rate / 2, shape.fft // 2 + 1)
    triangles = np.minimum((bins - left) / (middle - left), (right - bins) / (right - middle))
    return (np.maximum(0, triangles) * 2 / (right - left)).astype(np.float32)
