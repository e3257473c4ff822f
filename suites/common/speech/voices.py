"""Synthetic speech, the data of the small scale: a buzz or noise shaped by three resonances for each letter.

Words alternate consonants and vowels, and sound as they are written: what is heard follows from the text.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from common.shares import Array

RATE = 8000
"""Samples per second."""
PITCH = 120.0  # Hz
VOWEL_SECONDS, PAUSE_SECONDS = 0.1, 0.05
BANDWIDTH = 90.0  # Hz, of each resonance
LEVELS = (1.0, 0.7, 0.4)  # of the first, second and third resonance
PULSE = 0.1  # the part of a period in which the vocal cords are open
FADE = 40  # samples at each end of a letter

VOWELS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}
"""The resonances of a man's vowels, in Hz: Peterson and Barney, 1952, table II."""


class Consonant(NamedTuple):
    """How a consonant sounds."""

    voiced: bool
    resonances: tuple[int, int, int]
    seconds: float


CONSONANTS = {
    "b": Consonant(True, (300, 900, 2100), 0.045),
    "d": Consonant(True, (300, 1700, 2600), 0.045),
    "f": Consonant(False, (1200, 2200, 3200), 0.07),
    "k": Consonant(False, (1500, 2000, 2700), 0.04),
    "l": Consonant(True, (360, 1300, 3000), 0.06),
    "m": Consonant(True, (250, 1200, 2100), 0.06),
    "n": Consonant(True, (250, 1700, 2600), 0.06),
    "r": Consonant(True, (310, 1060, 1400), 0.06),
    "s": Consonant(False, (2900, 3500, 3800), 0.08),
    "t": Consonant(False, (1800, 2600, 3400), 0.04),
}
LETTERS = " " + "".join(sorted(VOWELS) + sorted(CONSONANTS))


class Utterance(NamedTuple):
    """A text and its speech."""

    text: str
    audio: Array
    """Samples from -1 to 1, float32."""


@cache
def utterances(count: int, seed: int, words: int = 2) -> tuple[Utterance, ...]:
    """Return utterances of one to ``words`` words; the same for the same arguments."""
    rng = np.random.default_rng((seed, 0x70CE))
    texts = [" ".join(_word(rng) for _ in range(rng.integers(1, words + 1))) for _ in range(count)]
    return tuple(Utterance(text, speak(text, rng)) for text in texts)


def _word(rng: np.random.Generator) -> str:
    syllables = rng.integers(1, 3)
    return "".join(rng.choice(list(CONSONANTS)) + rng.choice(list(VOWELS)) for _ in range(syllables))


def speak(text: str, rng: np.random.Generator) -> Array:
    """Return the speech of a text of ``LETTERS``; the voiceless letters are noise of the generator."""
    return np.concatenate([_sound(letter, rng) for letter in text]).astype(np.float32)


def _sound(letter: str, rng: np.random.Generator) -> Array:
    if letter == " ":
        return np.zeros(int(PAUSE_SECONDS * RATE))
    if letter in VOWELS:
        voiced, resonances, seconds, level = True, VOWELS[letter], VOWEL_SECONDS, 0.8
    else:
        (voiced, resonances, seconds), level = CONSONANTS[letter], 0.35
    samples = int(seconds * RATE)
    phase = np.arange(samples) * PITCH / RATE % 1
    source = (phase < PULSE) - PULSE if voiced else 0.3 * rng.standard_normal(samples)
    sound = _shaped(source, resonances)
    ends = np.minimum(np.arange(samples), np.arange(samples)[::-1])
    shaped: Array = level * sound / np.abs(sound).max() * np.minimum(1, ends / FADE)
    return shaped


def _shaped(source: Array, resonances: tuple[int, int, int]) -> Array:
    """Filter with a sum of resonators of two poles each, by their frequency response."""
    samples = len(source)
    z = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * samples))
    radius = np.exp(-np.pi * BANDWIDTH / RATE)
    response = np.zeros(samples + 1, np.complex128)
    for level, resonance in zip(LEVELS, resonances, strict=True):
        pole = radius * np.exp(2j * np.pi * resonance / RATE)
        response += level * abs(1 - pole) ** 2 / ((1 - pole * z) * (1 - pole.conjugate() * z))
    filtered: Array = np.fft.irfft(np.fft.rfft(source, 2 * samples) * response)[:samples]
    return filtered


def noise(audio: Array, rng: np.random.Generator) -> Array:
    """Return white noise of the same length and loudness, for a control training that must not converge."""
    return (audio.std() * rng.standard_normal(audio.shape)).astype(np.float32)
