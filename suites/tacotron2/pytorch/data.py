"""Tacotron 2's recordings with their texts, the loss and the metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import text
import torch
from common.shares import Array, Draw, Source
from common.speech import audio, recordings
from common.speech.audio import AudioError
from common.speech.recordings import Recordings
from common.speech.steps import eval_loader, log_mel, noise, synthetic, train_loader
from common.steps import Loader
from torch import Tensor, nn
from torch.nn import functional

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

EVAL_DROPOUT_SEED = 7


class Speech(NamedTuple):
    """A batch."""

    text: Array
    """(N, max_symbols): characters as numbers."""
    symbols: Array
    """(N,): the characters of each text."""
    audio: Array
    """(N, samples), from -1 to 1."""
    frames: Array
    """(N,): the frames of each spectrogram."""


class Prepared(NamedTuple):
    """A batch on the device."""

    text: Tensor
    symbols: Tensor
    mel: Tensor
    """(N, mels, length): 0 after the end of a recording."""
    ended: Tensor
    """(N, steps): 1 from the step on that says the last frame."""
    total: int
    """The frames of all recordings, without filling."""


@dataclass(frozen=True)
class Reader:
    """Reads recordings with their texts."""

    recordings: Recordings
    texts: Sequence[Array]
    config: Any
    length: int
    """Frames of all batches' spectrograms."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, draw: Draw) -> Speech:
        clips = [self.recordings.read(index, 0, self.recordings.samples(index)) for index in draw.indices]
        texts = [self.texts[index] for index in draw.indices]
        return batch_of(self.config, texts, clips, self.length)


def batch_of(config: Any, texts: list[Array], clips: list[Array], length: int) -> Speech:
    """Return a batch whose spectrograms have ``length`` frames."""
    frames = np.array([1 + len(clip) // config.hop for clip in clips])
    if frames.max() > length:
        raise AudioError(
            f"a recording has {frames.max()} frames, but max_frames = {length}; raise max_frames or leave it out"
        )
    # Beyond the end of a recording follows its mirror image, as the spectrogram of this recording alone would have it.
    mirrored = [np.pad(clip, (0, config.fft // 2), "reflect") for clip in clips]
    rows = audio.padded(mirrored, (length - 1) * config.hop + config.fft)
    lengths = np.array([len(one) for one in texts])
    return Speech(text.padded(texts, config.max_symbols), lengths, rows, frames)


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    return train_loader(ctx, _source(ctx, training=True))


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the evaluation's recordings."""
    return eval_loader(ctx, _source(ctx, training=False))


def prepare_batch(ctx: Context, batch: Speech) -> Prepared:
    """Copy the batch to the device and compute the spectrograms there."""
    config, speech = ctx.config, devices.to_device(batch, ctx.device)
    length = 1 + (speech.audio.shape[1] - config.fft) // config.hop
    mel = (log_mel(ctx)(speech.audio)[..., :length] - config.mel_mean) / config.mel_deviation
    mel = mel.masked_fill(torch.arange(length, device=ctx.device) >= speech.frames[:, None, None], 0)
    steps = math.ceil(length / config.frames_per_step)
    ended = config.frames_per_step * torch.arange(1, steps + 1, device=ctx.device) >= speech.frames[:, None]
    return Prepared(speech.text, speech.symbols, mel, ended.to(mel.dtype), count_samples(ctx, batch))


def calculate_loss(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the squared errors of both spectrograms plus the cross entropy of the end; filling counts."""
    spoken = model(batch.text, batch.symbols, batch.mel)
    errors = [functional.mse_loss(frames.float(), batch.mel) for frames in (spoken.frames, spoken.refined)]
    return errors[0] + errors[1] + functional.binary_cross_entropy_with_logits(spoken.ends.float(), batch.ended)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:
    """Return the sum of the recordings' losses, and their number; all evaluations draw the same dropout."""
    with torch.random.fork_rng([ctx.device] if ctx.device.type != "cpu" else [], device_type=ctx.device.type):
        torch.manual_seed(EVAL_DROPOUT_SEED)
        loss = calculate_loss(ctx, model, batch)
    return torch.stack([loss * len(batch.text), torch.full_like(loss, len(batch.text))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return the mean loss over all recordings; all spectrograms are filled to one length."""
    total, count = sums
    return {"val_loss": total / count}


def count_samples(ctx: Context, batch: Speech | Prepared) -> int:  # noqa: ARG001 - a step's signature
    """Return the frames of the recordings; filling does not count."""
    return batch.total if isinstance(batch, Prepared) else int(batch.frames.sum())


def _steps(ctx: Context, length: int) -> int:
    return -(-length // int(ctx.config.frames_per_step))


def _source(ctx: Context, *, training: bool) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return synthetic(ctx, partial(_noise, config), config.synthetic_recordings if training else None)
    found, words = recordings.of(ctx, training=training)
    texts = [text.encoded(one) for one in words]
    if training and config.shuffle_labels:  # a control that must not converge: the words of other recordings
        texts = [texts[index] for index in np.random.default_rng(ctx.seed).permutation(len(texts))]
    longest = 0 if training else max(found.samples(index) for index in range(len(found)))
    return Reader(found, texts, config, config.max_frames if training else 1 + longest // config.hop)


def _noise(config: Any, count: int, rng: np.random.Generator) -> Speech:
    """Return noise and characters of full length."""
    texts = list(rng.integers(1, len(text.SYMBOLS), (count, config.max_symbols)))
    clips = list(noise(rng, count, (config.max_frames - 1) * config.hop))
    return batch_of(config, texts, clips, config.max_frames)
