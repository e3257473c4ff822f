"""Checks of audio files and of LJ Speech's lists: ranges are exact, and bad files are named."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from checking import raises
from common.shares import Array
from common.speech.audio import AudioError, length, padded, read
from common.speech.ljspeech import Recording, read_list


def written(path: Path, rate: int = 8000, channels: int = 1) -> Array:
    """Write 1000 samples that 16 bits store exactly."""
    audio = np.random.default_rng(1).integers(-(2**15), 2**15, (1000, channels)) / 2**15
    soundfile.write(path, audio, rate, subtype="PCM_16")
    return audio[:, 0].astype(np.float32)


def check_a_range_of_each_format_is_exact() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("wav", "flac"):
            path = Path(folder, f"clip.{suffix}")
            audio = written(path)
            assert length(path, 8000) == 1000
            assert np.array_equal(read(path, 8000), audio)
            assert np.array_equal(read(path, 8000, 250, 300), audio[250:550])
            assert read(path, 8000).dtype == np.float32


def check_a_bad_file_is_named_with_the_fix() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stereo, fast, text = (Path(folder, name) for name in ("stereo.wav", "fast.wav", "text.wav"))
        written(stereo, channels=2)
        written(fast, rate=16000)
        text.write_text("not audio")
        for path, words in (
            (stereo, "stereo.wav: expected 8000 samples per second and 1 channel, got 8000 and 2"),
            (fast, "fast.wav: expected 8000 samples per second and 1 channel, got 16000 and 1"),
            (text, "text.wav: cannot be read as audio"),
            (Path(folder, "none.wav"), "none.wav: no such file"),
        ):
            for reader in (read, length):
                raises(AudioError, partial(reader, path, 8000), words)


def check_a_file_that_is_cut_short_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(path := Path(folder, "clip.wav"))
        path.write_bytes(path.read_bytes()[:-100])
        raises(AudioError, partial(length, path, 8000), "clip.wav: the file is cut short: 100 bytes fewer")


def check_a_range_beyond_the_end_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(path := Path(folder, "clip.wav"))
        for start, found in ((900, 100), (5000, 0)):
            raises(
                AudioError, partial(read, path, 8000, start, 101), f"expected 101 samples from {start} on, got {found}"
            )


def check_clips_are_padded_with_zeros() -> None:
    clips = [np.ones(3, np.float32), np.ones(1, np.float32)]
    assert padded(clips, 4).tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def check_a_list_names_the_recordings_by_their_file_names() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, wavs = Path(folder, "list.txt"), Path(folder, "wavs")
        path.write_text("mels/LJ001-0001.pt|Printing, in the only sense\nLJ002-0001|In being | comparatively modern.\n")
        assert read_list(path, wavs) == [
            Recording(wavs / "LJ001-0001.wav", "Printing, in the only sense"),
            Recording(wavs / "LJ002-0001.wav", "In being | comparatively modern."),
        ]
        for content, words in (
            ("a|one\nb\n", "line 2: expected <path>|<text>, got 'b'"),
            ("|one\n", "line 1: expected <path>|<text>"),
            ("a| \n", "line 1: expected <path>|<text>"),
            ("", "got an empty file"),
        ):
            path.write_text(content)
            raises(AudioError, partial(read_list, path, wavs), words)
        raises(AudioError, partial(read_list, wavs, wavs), "cannot be read as a list of recordings")
