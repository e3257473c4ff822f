"""Wav2Vec2's recordings, cut to few lengths, with their masks."""

from __future__ import annotations

from typing import Any, NamedTuple

import manifest
import masks
import numpy as np
from common.shares import Array, Draw, GroupedEvalShare, GroupedTrainShare, Share
from common.speech import recordings, voices
from common.speech.audio import AudioError
from common.speech.recordings import EVAL_SHARE, Recordings
from common.speech.steps import eval_loader, noise, synthetic, train_loader
from common.steps import Loader
from torch import Tensor

from flagperf_driver.pytorch import Context
from flagperf_driver.pytorch import device as devices

EVAL_SEED = 20200620
"""Draws the evaluation's masks, the same for all runs, and the synthetic utterances."""


class Masked(NamedTuple):
    """A batch of recordings of one length."""

    audio: Array | Tensor
    """(N, samples), from -1 to 1."""
    masked: Array | Tensor
    """(N, masked): the masked frames."""
    others: Array | Tensor
    """(N, masked, negatives): for each masked frame the numbers of other masked frames, int16."""


class Reader:
    """Cuts recordings to the greatest of the config's lengths that they have, at another place in each epoch."""

    def __init__(self, found: Recordings, config: Any, seed: int, *, only_noise: bool = False) -> None:
        lengths = np.array(sorted(config.lengths))
        samples = np.array([found.samples(index) for index in range(len(found))])
        self._kept = np.flatnonzero(samples >= lengths[0])
        if not len(self._kept):
            raise AudioError(f"no recording has {lengths[0]} samples or more; correct the list, or reduce lengths")
        self._samples = samples[self._kept]
        self.lengths = lengths[np.searchsorted(lengths, self._samples, side="right") - 1]
        self._found, self._config, self._seed, self._only_noise = found, config, seed, only_noise

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, draw: Draw) -> Masked:
        rows = [self._row(index, np.random.default_rng((self._seed, draw.epoch, index))) for index in draw.indices]
        return Masked(*(np.stack(part) for part in zip(*rows, strict=True)))

    def _row(self, index: int, rng: np.random.Generator) -> tuple[Array, ...]:
        length = int(self.lengths[index])
        start = int(rng.integers(self._samples[index] - length + 1))
        clip = self._found.read(int(self._kept[index]), start, length)
        return voices.noise(clip, rng) if self._only_noise else clip, *_choices(self._config, length, rng)


def _choices(config: Any, samples: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the masked frames, and the others of each."""
    chosen = masks.masked(frames(config, samples), config.masked_share, config.span, rng)
    return chosen, masks.others(len(chosen), config.negatives, rng).astype(np.int16)


def frames(config: Any, samples: int) -> int:
    """Return the frames that the convolutions make of so many samples."""
    for _, kernel, stride in config.convolutions:
        samples = (samples - kernel) // stride + 1
    return samples


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    config = ctx.config
    if ctx.synthetic:
        return train_loader(ctx, synthetic(ctx, lambda *of: _noise(config, *of), config.synthetic_recordings))
    source = Reader(_recordings(ctx, training=True), config, ctx.seed, only_noise=config.shuffle_labels)
    share = GroupedTrainShare(source.lengths, config.train_batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return _loader(ctx, source, share)


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the evaluation's recordings."""
    config = ctx.config
    if ctx.synthetic:
        return eval_loader(ctx, synthetic(ctx, lambda *of: _noise(config, *of), None))
    source = Reader(_recordings(ctx, training=False), config, EVAL_SEED)
    share = GroupedEvalShare(source.lengths, config.eval_batch_size, ctx.data_rank, ctx.data_ranks)
    return _loader(ctx, source, share)


def count_samples(ctx: Context, batch: Masked) -> int:
    """Return the number of frames."""
    count, samples = batch.audio.shape
    return count * frames(ctx.config, samples)


def _loader(ctx: Context, source: Reader, share: Share) -> Loader:
    workers = 0 if ctx.config.dataset == "voices" else int(ctx.config.num_workers)
    return Loader(source, share, workers, pin=devices.pins(ctx.device))


def _recordings(ctx: Context, *, training: bool) -> Recordings:
    config = ctx.config
    if config.dataset == "voices":
        spoken = [one.audio for one in voices.utterances(config.utterances, EVAL_SEED, config.words)]
        first = int(EVAL_SHARE * len(spoken))
        return recordings.Memory(spoken[first:] if training else spoken[:first])
    if ctx.data_dir is None:
        raise AudioError("data_dir is not set; pass --data-dir (the folder of train-full-960.tsv) or --synthetic")
    return manifest.read(ctx.data_dir / (config.train_data if training else config.eval_data), config.rate)


def _noise(config: Any, count: int, rng: np.random.Generator) -> Masked:
    """Return noise of the greatest length."""
    length = max(config.lengths)
    rows = [_choices(config, length, rng) for _ in range(count)]
    return Masked(noise(rng, count, length), *(np.stack(part) for part in zip(*rows, strict=True)))
