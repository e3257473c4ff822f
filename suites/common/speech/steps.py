"""What the PyTorch steps of the speech suites share: loaders, and log-mel spectrograms on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.shares import Array, EvalShare, Repeated, Source, TrainShare
from common.speech.mel import MelShape, filterbank
from common.steps import Loader
from flagperf_driver import seeds
from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

SYNTHETIC_BATCHES = 2


class LogMel(nn.Module):
    """Computes log-mel spectrograms: (N, samples) to (N, mels, frames); for batches outside autocast."""

    window: Tensor
    bands: Tensor

    def __init__(self, shape: MelShape) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("window", torch.hann_window(shape.fft), persistent=False)
        self.register_buffer("bands", torch.from_numpy(filterbank(shape)), persistent=False)

    @torch.no_grad()
    def forward(self, audio: Tensor) -> Tensor:
        """Frames are centred on their samples; the audio is mirrored beyond its ends."""
        waves = torch.stft(
            audio, self.shape.fft, self.shape.hop, window=self.window, pad_mode="reflect", return_complex=True
        )
        return (self.bands @ waves.abs()).clamp(min=self.shape.floor).log()


def log_mel(ctx: Context) -> LogMel:
    """Return the config's spectrogram on the device."""
    config = ctx.config
    edges = (config.mel_low, config.mel_high, config.mel_floor)
    return _on_device(MelShape(config.rate, config.fft, config.hop, config.mels, *edges), ctx.device)


@cache
def _on_device(shape: MelShape, device: torch.device) -> LogMel:
    return LogMel(shape).to(device)


def train_loader(ctx: Context, source: Source) -> Loader:
    """Return this rank's share of every epoch."""
    share = TrainShare(len(source), ctx.config.train_batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return Loader(source, share, _workers(ctx), pin=devices.pins(ctx.device))


def eval_loader(ctx: Context, source: Source) -> Loader:
    """Return this rank's share of the evaluation."""
    share = EvalShare(len(source), ctx.config.eval_batch_size, ctx.data_rank, ctx.data_ranks)
    return Loader(source, share, _workers(ctx), pin=devices.pins(ctx.device))


def synthetic(
    ctx: Context, draw: Callable[[int, np.random.Generator], tuple[Any, ...]], training: int | None
) -> Source:
    """Return batches that cost no more than the copy to the device.

    ``draw`` returns a batch, a named tuple, of so many items; ``training`` is their number in an epoch, None for
    evaluation.
    """
    count = ctx.config.eval_batch_size if training is None else ctx.config.train_batch_size
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank))
    batches = [draw(count, rng) for _ in range(SYNTHETIC_BATCHES)]
    return Repeated(batches, training or count * ctx.data_ranks)


def noise(rng: np.random.Generator, *shape: int) -> Array:
    """Return noise as loud as speech."""
    audio: Array = rng.normal(0, 0.1, shape).astype(np.float32)
    return audio


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; recordings in memory need no process."""
    return 0 if ctx.synthetic or ctx.config.dataset == "voices" else int(ctx.config.num_workers)
