"""WaveGlow's segments of speech, the loss and the metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from common.shares import Array, Draw, Source
from common.speech import audio, recordings, voices
from common.speech.recordings import Recordings
from common.speech.steps import eval_loader, log_mel, noise, synthetic, train_loader
from common.steps import Loader
from torch import Tensor, nn

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

EVAL_SEED = 20180531
"""Draws the evaluation's segments, the same for all runs."""


class Segments(NamedTuple):
    """A batch."""

    audio: Array
    """(N, samples), from -1 to 1."""


class Prepared(NamedTuple):
    """A batch on the device."""

    audio: Tensor
    mel: Tensor


@dataclass(frozen=True)
class Reader:
    """Reads a segment of each recording, at another place in each epoch."""

    recordings: Recordings
    length: int
    seed: int
    hiss: float = 0.0
    """The level of white noise that is added; without it, silence would have an infinite likelihood."""
    only_noise: bool = False
    """Replace the speech by noise as loud, for a control training that must not converge."""

    def __len__(self) -> int:
        return len(self.recordings)

    def __getitem__(self, draw: Draw) -> Segments:
        rows = [self._segment(index, np.random.default_rng((self.seed, draw.epoch, index))) for index in draw.indices]
        return Segments(audio.padded(rows, self.length))

    def _segment(self, index: int, rng: np.random.Generator) -> Array:
        whole = self.recordings.samples(index)
        start = int(rng.integers(max(whole - self.length, 0) + 1))
        segment = self.recordings.read(index, start, min(self.length, whole))
        if self.only_noise:
            segment = voices.noise(segment, rng)
        if not self.hiss:
            return segment
        noisy: Array = segment + np.float32(self.hiss) * rng.standard_normal(len(segment), np.float32)
        return noisy


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    return train_loader(ctx, _source(ctx, training=True))


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the evaluation's segments."""
    return eval_loader(ctx, _source(ctx, training=False))


def prepare_batch(ctx: Context, batch: Segments) -> Prepared:
    """Copy the audio to the device and compute its spectrogram there."""
    on_device = devices.to_device(batch.audio, ctx.device)
    return Prepared(on_device, log_mel(ctx)(on_device))


def calculate_loss(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:
    """Return the negative log-likelihood of a sample, without the constant of the normal distribution, in nats."""
    noise, volume = model(batch.mel, batch.audio)
    return (noise.float().square().sum() / (2 * ctx.config.sigma**2) - volume) / noise.numel()


def evaluate_batch(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:
    """Return the sum of the segments' losses, and their number."""
    loss = calculate_loss(ctx, model, batch)
    return torch.stack([loss * len(batch.audio), torch.full_like(loss, len(batch.audio))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the mean loss over all segments; all are of one length."""
    total, count = sums
    return {"val_loss": total / count}


def count_samples(ctx: Context, batch: Segments | Prepared) -> int:
    """Return the number of samples of audio."""
    return len(batch.audio) * int(ctx.config.segment_length)


def _source(ctx: Context, *, training: bool) -> Source:
    config = ctx.config
    if ctx.synthetic:
        segments = config.synthetic_segments if training else None
        return synthetic(ctx, lambda count, rng: Segments(noise(rng, count, config.segment_length)), segments)
    found, _ = recordings.of(ctx, training=training)
    if isinstance(found, recordings.Memory):
        found = recordings.Memory([clip for clip in found.clips if len(clip) >= config.segment_length])
    only_noise = training and config.shuffle_labels
    return Reader(found, config.segment_length, ctx.seed if training else EVAL_SEED, config.hiss, only_noise)
