"""Pictures of digits: MNIST's files at the reference scale, the included pictures at the small scale."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from common.images import digits
from common.shares import Array, Draw, EvalShare, SourceError, TrainShare
from common.steps import Loader
from torch import Tensor

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


class Digits(NamedTuple):
    """A batch: pixels from 0 to 1, as pictures x rows x columns, and the digits."""

    pixels: Tensor
    labels: Tensor


class Pictures:
    """All pictures of one part of the data."""

    def __init__(self, pixels: Array, labels: Array) -> None:
        self.pixels, self.labels = pixels, labels.astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> Digits:
        pixels = self.pixels[draw.indices].astype(np.float32) / 255
        return Digits(torch.from_numpy(pixels), torch.from_numpy(self.labels[draw.indices]))


def create_train_data(ctx: Context) -> Iterable[Digits]:
    """Return this rank's share of every epoch."""
    pictures = load(ctx, train=True)
    if ctx.config.shuffle_labels:  # a control: the training must not converge
        pictures.labels = np.random.default_rng(ctx.seed).permutation(pictures.labels)
    share = TrainShare(len(pictures), ctx.config.train_batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return Loader(pictures, share)


def create_eval_data(ctx: Context) -> Iterable[Digits]:
    """Return this rank's share of the other pictures."""
    pictures = load(ctx, train=False)
    return Loader(pictures, EvalShare(len(pictures), ctx.config.eval_batch_size, ctx.data_rank, ctx.data_ranks))


def count_samples(ctx: Context, batch: Digits) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of pictures."""
    return len(batch.labels)


def load(ctx: Context, *, train: bool) -> Pictures:
    """Return the pictures for the training or for the evaluation."""
    size = ctx.config.image_size
    if ctx.synthetic:
        rng = np.random.default_rng(ctx.seed)
        return Pictures(rng.integers(0, 256, (6000, size, size), np.uint8), rng.integers(0, 10, 6000))
    if ctx.config.dataset == "digits":
        images = digits.load(size, train=train)
        return Pictures(images.pixels[..., 0], images.labels)
    assert ctx.data_dir is not None
    prefix = ctx.data_dir / (ctx.config.train_data if train else ctx.config.eval_data)
    pixels, labels = (read_idx(Path(f"{prefix}-{rest}")) for rest in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if len(pixels) != len(labels):
        raise SourceError(f"{prefix}-*: {len(pixels)} pictures, {len(labels)} labels; expected equal numbers")
    return Pictures(pixels, labels)


def read_idx(path: Path) -> Array:
    """Return the bytes of an IDX file as an array: 0, 0, 8, the number of dimensions, the sizes, the values."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise SourceError(
            f"{path}: {error.strerror}; copy MNIST's four files, decompressed, into {path.parent}"
        ) from None
    if len(content) < 8 or [*content[:3]] != [0, 0, 8]:
        raise SourceError(f"{path}: not an IDX file of bytes; decompress it (gunzip), or copy it again")
    start = 4 + 4 * int(content[3])
    sizes = [*map(int, content[4:start].view(">u4"))]
    if len(content) - start != np.prod(sizes):
        raise SourceError(f"{path}: {len(content) - start} values, expected {np.prod(sizes)}; copy the file again")
    return content[start:].reshape(sizes)
