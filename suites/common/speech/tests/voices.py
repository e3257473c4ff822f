"""Checks of the synthetic speech."""

from __future__ import annotations

import numpy as np
from common.speech.voices import CONSONANTS, LETTERS, RATE, VOWELS, noise, speak, utterances


def check_the_same_arguments_give_the_same_speech() -> None:
    some = utterances(20, 3)
    utterances.cache_clear()
    again = utterances(20, 3)
    assert [one.text for one in some] == [one.text for one in again]
    assert all(np.array_equal(one.audio, other.audio) for one, other in zip(some, again, strict=True))
    assert [one.text for one in utterances(20, 4)] != [one.text for one in some]


def check_texts_are_syllables_and_audio_is_in_range() -> None:
    for text, audio in utterances(50, 1):
        assert set(text) <= set(LETTERS)
        for word in text.split():
            assert all(a in CONSONANTS and b in VOWELS for a, b in zip(word[::2], word[1::2], strict=True))
        assert audio.dtype == np.float32
        assert 0.5 < np.abs(audio).max() <= 1
        assert len(audio) >= 0.14 * RATE


def check_a_vowel_is_loudest_near_its_resonances() -> None:
    rng = np.random.default_rng(0)
    for vowel, resonances in VOWELS.items():
        audio = speak(vowel * 4, rng)
        power = np.abs(np.fft.rfft(audio)) ** 2
        hertz = np.fft.rfftfreq(len(audio), 1 / RATE)
        near = power[(abs(hertz - resonances[0]) < 150)].mean()
        between = power[(hertz > 3200) & (hertz < 3900)].mean()
        assert near > 30 * between, vowel


def check_noise_is_as_loud_and_has_no_resonance() -> None:
    audio = utterances(5, 1)[0].audio
    hiss = noise(audio, np.random.default_rng(2))
    assert hiss.shape == audio.shape
    assert abs(hiss.std() / audio.std() - 1) < 0.1
    power = np.abs(np.fft.rfft(hiss)) ** 2
    parts = [part.mean() for part in np.array_split(power, 4)]
    assert max(parts) < 1.5 * min(parts)
