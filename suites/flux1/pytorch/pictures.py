"""Encoded pictures with their texts, as MLPerf's data have them, and what a training step draws of each.

A sample depends on the seed, the epoch and its number alone: neither the number of ranks nor the batch changes its
latents, its noise and its time. In an evaluation it depends on its number alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from arrow_folder import ArrowFolder
from common.shares import Array, Draw, SourceError
from torch import Tensor

TIME_STEPS = 8
"""The time steps of the evaluation; step 0 is the picture without noise, step 8, which is left out, noise alone."""
EVALUATION_SEED = 0
TEXT, POOLED, MEAN, LOG_VARIANCE, STEP = "t5_encodings", "clip_encodings", "mean", "logvar", "timestep"
EMPTY = {TEXT: "t5_empty.npy", POOLED: "clip_empty.npy"}
"""The files of the encodings of an empty text."""


class Batch(NamedTuple):
    """Some pictures: latents and noise are (pictures, channels, rows, columns), times are from 0 to 1 (noise)."""

    latents: Tensor
    noise: Tensor
    times: Tensor
    text: Tensor
    """(pictures, words, values)"""
    pooled: Tensor
    """(pictures, values)"""


class Encodings(NamedTuple):
    """A text; arrays of uint16 are the bits of bfloat16."""

    text: Array
    pooled: Array


class Picture(NamedTuple):
    """A row of the data."""

    mean: Array
    deviation: Array | float
    """Of the autoencoder: a picture has a latent for each draw."""
    encodings: Encodings
    step: int | None
    """The time step at which the evaluation uses the picture."""


class Album(Protocol):
    """Pictures by their numbers."""

    empty: Encodings
    """The text that takes the place of a dropped one."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Picture: ...


class Samples:
    """Batches of an album."""

    def __init__(self, album: Album, config: Any, seed: int | None = None, shuffle_seed: int | None = None) -> None:
        """Draw for a training by its seed, for an evaluation without one.

        With ``shuffle_seed``, a control, each picture has the text of another.
        """
        self._album, self._seed = album, seed
        self._shift, self._scale, self._dropout = config.latent_shift, config.latent_scale, config.text_dropout
        self._texts = None if shuffle_seed is None else np.random.default_rng(shuffle_seed).permutation(len(album))

    def __len__(self) -> int:
        return len(self._album)

    def __getitem__(self, draw: Draw) -> Batch:
        samples = [self._sample(draw.epoch, int(number)) for number in draw.indices]
        return Batch(*(_stacked(parts) for parts in zip(*samples, strict=True)))

    def _sample(self, epoch: int, number: int) -> tuple[Array, Array, Array, Array, Array]:
        picture = self._album[number]
        encodings = picture.encodings
        if self._texts is not None:
            encodings = self._album[int(self._texts[number])].encodings
        training = self._seed is not None
        rng = np.random.default_rng((self._seed, epoch, number) if training else (EVALUATION_SEED, number))
        noise, of_encoder = rng.standard_normal((2, *picture.mean.shape), np.float32)
        if training:
            # Uniform, from 0 to below 1; both texts are dropped together.
            time = np.asarray(rng.random(dtype=np.float32), np.float32)
            encodings = self._album.empty if rng.random() < self._dropout else encodings
        else:
            time = np.asarray(_step(picture, number) / TIME_STEPS, np.float32)
        latents = (picture.mean + picture.deviation * of_encoder - self._shift) * self._scale
        return latents.astype(np.float32), noise, time, *encodings


def _step(picture: Picture, number: int) -> int:
    if picture.step is None or not 0 <= picture.step < TIME_STEPS:
        raise SourceError(
            f"picture {number} of the evaluation has {STEP} = {picture.step}; expected 0 to {TIME_STEPS - 1}; "
            "copy the data again"
        )
    return picture.step


def _stacked(parts: tuple[Array, ...]) -> Tensor:
    """Return arrays as one tensor; bits of bfloat16 as such."""
    stacked = np.stack(parts)
    if stacked.dtype == np.uint16:
        return torch.from_numpy(stacked.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(stacked)


# -- MLPerf's data -------------------------------------------------------------------------------------------


class EncodedPictures:
    """An album in an Arrow folder: each binary value is what ``numpy.save`` wrote of the bits of bfloat16."""

    def __init__(self, folder: Path, empty: Path, config: Any) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {
            TEXT: (config.text_tokens, config.text_size),
            POOLED: (config.pooled_size,),
            **dict.fromkeys((MEAN, LOG_VARIANCE), (config.latent_channels, config.latent_side, config.latent_side)),
        }
        self._rows = ArrowFolder(folder, (*self._shapes, STEP))
        self.empty = Encodings(*(self._read_empty(empty / file, name) for name, file in EMPTY.items()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Picture:
        row = self._rows.read(number)
        text, pooled, mean, log_variance = (self._values(row[name], name, number) for name in self._shapes)
        deviation = np.exp(0.5 * _numbers(log_variance))
        return Picture(_numbers(mean), deviation, Encodings(text, pooled), row[STEP])

    def _values(self, content: bytes | None, name: str, number: int) -> Array:
        """Return the bits of a binary value."""
        values = _array(io.BytesIO(content or b""), lambda: f"{self._rows.place(number)}: {name}")
        if values.dtype != np.uint16 or values.shape[-len(self._shapes[name]) :] != self._shapes[name]:
            raise SourceError(
                f"{self._rows.place(number)}: {name} has {values.dtype}, {values.shape}; "
                f"expected uint16, {self._shapes[name]}"
            )
        return values.reshape(self._shapes[name])  # some encoders add a first dimension of 1

    def _read_empty(self, path: Path, name: str) -> Array:
        try:
            with path.open("rb") as file:
                values = _array(file, lambda: str(path))
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror}); copy the folder again") from None
        if values.size != np.prod(self._shapes[name]) or values.dtype.kind != "f":
            raise SourceError(f"{path}: {values.dtype}, {values.shape}; expected floats, {self._shapes[name]}")
        return _bits(values.reshape(self._shapes[name]))


def _array(file: Any, place: Callable[[], str]) -> Array:
    try:
        values: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(f"{place()}: not an array of numpy ({error}); copy the file again") from None
    return values


def _bits(values: Array) -> Array:
    """Return the bits of the nearest bfloat16."""
    bits: Array = torch.from_numpy(values.astype(np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return bits


def _numbers(bits: Array) -> Array:
    """Return the numbers of the bits of bfloat16: the upper half of those of float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


# -- random pictures -------------------------------------------------------------------------------------------


class RandomPictures:
    """An album of random pictures and texts of the real shapes."""

    def __init__(self, config: Any, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        self._means = rng.standard_normal((count, config.latent_channels, *2 * [config.latent_side]), np.float32)
        texts = rng.standard_normal((count, config.text_tokens, config.text_size), np.float32)
        pooled = rng.standard_normal((count, config.pooled_size), np.float32)
        self._encodings = [Encodings(_bits(text), _bits(each)) for text, each in zip(texts, pooled, strict=True)]
        self.empty = self._encodings[0]

    def __len__(self) -> int:
        return len(self._means)

    def __getitem__(self, number: int) -> Picture:
        return Picture(self._means[number], 0.0, self._encodings[number], number % TIME_STEPS)
