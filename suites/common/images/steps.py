"""The steps that image classification suites share; a suite adds its model and may replace steps.

The steps read these config keys in addition to those of every training: ``dataset`` (imagenet or digits),
``image_size``, ``resize_size``, ``num_classes``, ``label_smoothing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from common.images import digits, folders
from common.images.folders import Images
from common.shares import Array, EvalShare, Repeated, Source, TrainShare
from common.steps import Loader
from flagperf_driver import seeds
from flagperf_driver.pytorch import device as devices

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context

IMAGENET_TRAIN = 1_281_167
"""The number of images in ImageNet's training set, also of an epoch of synthetic images."""
SYNTHETIC_BATCHES = 4
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Prepared(NamedTuple):
    """A batch on the device."""

    pixels: Tensor
    """(N, 3, H, W), normalised."""
    labels: Tensor


def create_train_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of every epoch."""
    config, source = ctx.config, _train_source(ctx)
    share = TrainShare(len(source), config.train_batch_size, ctx.rank, ctx.world_size, ctx.seed)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of the validation set."""
    source = _eval_source(ctx)
    share = EvalShare(len(source), ctx.config.eval_batch_size, ctx.rank, ctx.world_size)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def prepare_batch(ctx: Context, batch: Images) -> Prepared:
    """Copy the batch to the device as bytes, then mirror and normalise it there."""
    pixels, labels, mirrored = devices.to_device(batch, ctx.device)
    pixels = pixels.permute(0, 3, 1, 2)  # channels last in memory, as decoded
    if mirrored is not None:
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    layout = torch.channels_last if ctx.config.channels_last else torch.contiguous_format
    mean, deviation = _moments(ctx.device)
    return Prepared((pixels.to(torch.float32, memory_format=layout) - mean).div_(deviation), labels)


def calculate_loss(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:
    """Return the cross entropy."""
    smoothing = ctx.config.label_smoothing
    return functional.cross_entropy(model(batch.pixels), batch.labels, label_smoothing=smoothing)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the number of correct top-1 and top-5 predictions, the sum of the loss, and the number of images."""
    scores = model(batch.pixels).float()
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == batch.labels[:, None]
    loss = functional.cross_entropy(scores, batch.labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss, torch.full_like(loss, len(scores))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return top1, top5 and the mean loss over the whole set."""
    first, five, loss, count = sums
    return {"top1": first / count, "top5": five / count, "loss": loss / count}


def count_samples(ctx: Context, batch: Images | Prepared) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of images."""
    return len(batch.labels)


# -- sources of images ---------------------------------------------------------------------------------------


def _train_source(ctx: Context) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, _train_samples(ctx), config.train_batch_size)
    if config.dataset == "digits":
        part = digits.load(config.image_size, train=True)
        return folders.MemoryImages(part.pixels, _training_labels(ctx, part.labels))
    listing = _listing(_folder(ctx, "train"))
    if len(listing.classes) != config.num_classes:
        raise folders.ImagesError(
            f"{listing.root}: {len(listing.classes)} class folders; expected num_classes = {config.num_classes}"
        )
    labels = _training_labels(ctx, listing.labels)
    return folders.FolderImages(listing, config.image_size, folders.random_box, labels, mirror=True, seed=ctx.seed)


def _eval_source(ctx: Context) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, config.eval_batch_size * ctx.world_size, config.eval_batch_size)
    if config.dataset == "digits":
        return digits.load(config.image_size, train=False)
    listing = _listing(_folder(ctx, "val")).relabelled(_listing(_folder(ctx, "train")).classes)
    box = folders.center_box(config.image_size / config.resize_size)
    return folders.FolderImages(listing, config.image_size, box, listing.labels)


def _synthetic(ctx: Context, samples: int, batch_size: int) -> Source:
    """Return batches of random bytes that cost no more than the copy to the device."""
    config = ctx.config
    shape = folders.BatchShape(batch_size, config.image_size, config.num_classes)
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.rank))
    drawn = (
        devices.to_device(folders.random_images(shape, rng), torch.device("cpu")) for _ in range(SYNTHETIC_BATCHES)
    )
    batches = [Images(*(part.pin_memory() for part in batch[:2])) if _pin(ctx) else batch for batch in drawn]
    return Repeated(batches, samples)


def _training_labels(ctx: Context, labels: Array) -> Array:
    return folders.shuffled(labels, ctx.seed) if ctx.config.shuffle_labels else labels


def _train_samples(ctx: Context) -> int:
    if ctx.config.dataset == "digits":
        return digits.TRAIN
    return IMAGENET_TRAIN if ctx.synthetic else len(_listing(_folder(ctx, "train")))


def _folder(ctx: Context, part: str) -> Path:
    folder = ctx.config.train_data if part == "train" else ctx.config.eval_data
    if ctx.data_dir is None:
        raise folders.ImagesError("data_dir is not set; pass --data-dir (the folder of train/ and val/) or --synthetic")
    return ctx.data_dir / (folder or part)


_listing = cache(folders.list_folder)  # the data and the schedule share one listing per process


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; images in memory need no process."""
    return 0 if ctx.synthetic or ctx.config.dataset == "digits" else int(ctx.config.num_workers)


# -- on the device -------------------------------------------------------------------------------------------


def _pin(ctx: Context) -> bool:
    return devices.pins(ctx.device)


@cache
def _moments(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of bytes; kept, because a copy for each batch would be a synchronization."""
    mean, deviation = (torch.tensor(of, device=device).mul_(255).view(3, 1, 1) for of in (MEAN, STD))
    return mean, deviation
