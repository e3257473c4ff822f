"""Checks of the mel scale, the bands and the spectrogram on the device."""

from __future__ import annotations

import numpy as np
import torch
from common.speech.mel import MelShape, filterbank, to_hertz, to_mel
from common.speech.steps import LogMel

TACOTRON2 = MelShape(22050, 1024, 256, 80, 0, 8000)


def check_the_bands_are_those_of_other_libraries() -> None:
    """The figures are those of ``transformers.audio_utils.mel_filter_bank`` 5.23 with Slaney's scale and norm."""
    bands = filterbank(TACOTRON2)
    assert bands.shape == (80, 513)
    peaks = {band: (int(bands[band].argmax()), float(bands[band].max())) for band in (0, 26, 40, 79)}
    published = {0: (2, 0.02265139), 26: (47, 0.02179908), 40: (80, 0.01489547), 79: (358, 0.00326599)}
    for band, (place, height) in published.items():
        assert peaks[band][0] == place
        assert abs(peaks[band][1] - height) < 1e-7
    assert abs(float(bands.sum()) - 3.7136882) < 1e-4
    assert abs(float((bands.astype(np.float64) ** 2).sum()) - 0.0400498) < 1e-6


def check_the_scale_can_be_inverted() -> None:
    hertz = np.array([0.0, 440, 999, 1000, 1001, 4000, 11025])
    assert np.allclose(to_hertz(to_mel(hertz)), hertz)
    assert np.isclose(to_mel(np.array([6400.0]))[0], 15 + 27)


def check_a_tone_is_in_its_band() -> None:
    mel = LogMel(TACOTRON2)
    seconds = torch.arange(22050) / 22050
    middles = to_hertz(np.linspace(*to_mel(np.array([0.0, 8000.0])), 82))[1:-1]
    for band in (20, 50, 70):
        tone = torch.sin(2 * torch.pi * float(middles[band]) * seconds)
        spectrum = mel(tone[None])[0, :, 40]
        assert spectrum.argmax().item() == band


def check_a_spectrogram_has_the_frames_that_the_readers_count() -> None:
    mel = LogMel(TACOTRON2)
    for samples in (1024, 25599, 25600, 25601):
        assert mel(torch.zeros(2, samples)).shape == (2, 80, TACOTRON2.frames(samples))


def check_silence_is_at_the_floor() -> None:
    mel = LogMel(TACOTRON2)
    assert torch.allclose(mel(torch.zeros(1, 2048)), torch.tensor(TACOTRON2.floor).log())
    assert mel(torch.randn(1, 2048, generator=torch.Generator().manual_seed(1))).min() > -5
