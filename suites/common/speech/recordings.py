"""Recordings with their texts: LJ Speech's files, or the synthetic voices of the small scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.shares import Array, RankContext
from common.speech import audio, ljspeech, voices
from common.speech.audio import AudioError

VOICES_SEED = 20180531
EVAL_SHARE = 0.1
"""The part of the synthetic utterances that is for evaluation only."""


class Recordings(Protocol):
    """Recordings that are read one by one, as a whole or in part."""

    def __len__(self) -> int: ...

    def samples(self, index: int) -> int: ...

    def read(self, index: int, start: int, samples: int) -> Array: ...


@dataclass(frozen=True)
class Files:
    """Recordings in files."""

    paths: Sequence[Path]
    rate: int

    def __len__(self) -> int:
        return len(self.paths)

    def samples(self, index: int) -> int:
        return audio.length(self.paths[index], self.rate)

    def read(self, index: int, start: int, samples: int) -> Array:
        return audio.read(self.paths[index], self.rate, start, samples)


@dataclass(frozen=True)
class Memory:
    """Recordings in memory."""

    clips: Sequence[Array]

    def __len__(self) -> int:
        return len(self.clips)

    def samples(self, index: int) -> int:
        return len(self.clips[index])

    def read(self, index: int, start: int, samples: int) -> Array:
        return self.clips[index][start : start + samples]


def of(ctx: RankContext, *, training: bool) -> tuple[Recordings, list[str]]:
    """Return the recordings for training or for evaluation, and their texts."""
    return _voices(ctx, training) if ctx.config.dataset == "voices" else _files(ctx, training)


def _voices(ctx: RankContext, training: bool) -> tuple[Memory, list[str]]:
    spoken = voices.utterances(ctx.config.utterances, VOICES_SEED)
    first = int(EVAL_SHARE * len(spoken))
    part = spoken[first:] if training else spoken[:first]
    return Memory([one.audio for one in part]), [one.text for one in part]


def _files(ctx: RankContext, training: bool) -> tuple[Files, list[str]]:
    config = ctx.config
    if ctx.data_dir is None:
        raise AudioError("data_dir is not set; pass --data-dir (the folder of LJSpeech-1.1/) or --synthetic")
    path = ctx.data_dir / (config.train_data if training else config.eval_data)
    listed = ljspeech.read_list(path, ctx.data_dir / config.wavs)
    return Files([one.audio for one in listed], config.rate), [one.text for one in listed]
