"""The images that a config names, for every framework: labelled folders, handwritten digits, synthetic images.

The functions read these config keys in addition to those of every training: ``dataset`` (imagenet or digits),
``train_data``, ``eval_data``, ``image_size``, ``resize_size``, ``num_classes``, and those of ``OPTIONAL``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from common.images import digits, folders
from common.images.encoded import EncodedImages
from common.images.folders import Images
from common.images.mixing import Mixed
from common.shares import Array, EvalShare, Repeated, Source, TrainShare
from flagperf_driver import seeds
from flagperf_driver.training.steps import Context

Ready: TypeAlias = Callable[[Images], Any]

OPTIONAL = {
    "reader": "pillow",  # decodes in worker processes; "torchvision" or "dali" (NVIDIA DALI): on the device
    "eval_size": None,  # the size of evaluation images; None: image_size
    "interpolation": "bilinear",  # or "bicubic"
    "pixel_mean": (0.485, 0.456, 0.406),  # ImageNet's
    "pixel_deviation": (0.229, 0.224, 0.225),
    "crop": "area",  # random area and aspect; "shifted": image_size/resize_size of both sides at a random place
    "augment": None,  # "randaugment", "trivialaugment", or timm's, such as "rand-m9-mstd0.5-inc1"
    "erase": 0.0,  # the share of training images with an erased rectangle
    "erase_noise": False,  # the rectangle has noise instead of the mean colour
    "mixup": 0.0,  # the parameter of the beta distribution; 0: none
    "cutmix": 0.0,
    "repeats": 1,  # copies of an image in an epoch, each changed in another way
}
"""The config keys that a suite may leave out, with the values that they then have."""

READERS = ("pillow", "torchvision", "dali")
"""The values of ``reader``."""
IMAGENET_TRAIN = 1_281_167
"""The number of images in ImageNet's training set, also of an epoch of synthetic images."""
SYNTHETIC_BATCHES = 4


def setting(ctx: Context, name: str) -> Any:
    """Return an optional config key."""
    return getattr(ctx.config, name) if name in ctx.config else OPTIONAL[name]


def as_read(batch: Images) -> Images:
    """Return the batch unchanged."""
    return batch


def train_share(ctx: Context, source: Source) -> TrainShare:
    """Return this rank's share of every epoch."""
    batch_size, repeats = ctx.config.train_batch_size, setting(ctx, "repeats")
    return TrainShare(len(source), batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed, repeats=repeats)


def eval_share(ctx: Context, source: Source) -> EvalShare:
    """Return this rank's share of the validation set."""
    return EvalShare(len(source), ctx.config.eval_batch_size, ctx.data_rank, ctx.data_ranks)


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return top1, top5 and the mean loss over the whole set."""
    first, five, loss, count = sums
    return {"top1": first / count, "top5": five / count, "loss": loss / count}


def count_samples(ctx: Context, batch: Any) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of images."""
    return len(batch.labels)


def train(ctx: Context, ready: Ready = as_read) -> Source:
    """Return the training images; ``ready`` is applied once to each batch of synthetic images."""
    source, mixup, cutmix = _train(ctx, ready), setting(ctx, "mixup"), setting(ctx, "cutmix")
    return Mixed(source, ctx.config.image_size, mixup, cutmix, ctx.seed) if mixup or cutmix else source


def _train(ctx: Context, ready: Ready) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, _train_samples(ctx), config.train_batch_size, config.image_size, ready)
    if config.dataset == "digits":
        part = digits.load(config.image_size, train=True)
        return folders.MemoryImages(part.pixels, _training_labels(ctx, part.labels))
    listing = _listing(_folder(ctx, "train"))
    if len(listing.classes) != config.num_classes:
        raise folders.ImagesError(
            f"{listing.root}: {len(listing.classes)} class folders; expected num_classes = {config.num_classes}"
        )
    size, method, mean = config.image_size, resampling(ctx), tuple(setting(ctx, "pixel_mean"))
    name, share, deviation = setting(ctx, "augment"), setting(ctx, "erase"), tuple(setting(ctx, "pixel_deviation"))
    return _reader(ctx)(
        listing,
        size,
        folders.shifted_box(size / config.resize_size) if _shifted(ctx) else folders.random_box,
        _training_labels(ctx, listing.labels),
        resampling=method,
        mirror=True,
        change=_augment().create(name, size, mean, method) if name else None,
        erase=_augment().Eraser(share, mean, deviation, noise=setting(ctx, "erase_noise")) if share else None,
        seed=ctx.seed,
    )


def evaluation(ctx: Context, ready: Ready = as_read) -> Source:
    """Return the validation images."""
    config, size = ctx.config, eval_size(ctx)
    if ctx.synthetic:
        return _synthetic(ctx, config.eval_batch_size * ctx.data_ranks, config.eval_batch_size, size, ready)
    if config.dataset == "digits":
        return digits.load(size, train=False)
    listing = _listing(_folder(ctx, "val")).relabelled(_listing(_folder(ctx, "train")).classes)
    box = folders.whole_box if _shifted(ctx) else folders.center_box(size / config.resize_size)
    return _reader(ctx)(listing, size, box, listing.labels, resampling=resampling(ctx))


def _synthetic(ctx: Context, samples: int, batch_size: int, size: int, ready: Ready) -> Source:
    """Return batches of random bytes that cost no more than the copy to the device."""
    shape = folders.BatchShape(batch_size, size, ctx.config.num_classes)
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank))
    batches = [ready(folders.random_images(shape, rng)) for _ in range(SYNTHETIC_BATCHES)]
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


def eval_size(ctx: Context) -> int:
    """Return the size of evaluation images."""
    size: int = setting(ctx, "eval_size") or ctx.config.image_size
    return size


def in_memory(ctx: Context) -> bool:
    """Return True if no files are read."""
    return bool(ctx.synthetic or ctx.config.dataset == "digits")


def reader(ctx: Context) -> str:
    """Return the name of the reader; images in memory need no other than the first."""
    return READERS[0] if in_memory(ctx) else _one_of(ctx, "reader", READERS)


def _reader(ctx: Context) -> type[folders.FolderImages]:
    if (name := reader(ctx)) == READERS[0]:
        return folders.FolderImages
    if changes := [f"{key}={value!r}" for key in ("augment", "erase") if (value := setting(ctx, key))]:
        raise folders.ImagesError(
            f"{' and '.join(changes)} cannot be combined with reader={name!r}: these change pictures on "
            "the host; set reader = 'pillow'"
        )
    return EncodedImages


def _shifted(ctx: Context) -> bool:
    return _one_of(ctx, "crop", ("area", "shifted")) == "shifted"


def resampling(ctx: Context) -> Image.Resampling:
    """Return the method that resizes pictures."""
    return Image.Resampling[_one_of(ctx, "interpolation", ("bilinear", "bicubic")).upper()]


def _one_of(ctx: Context, name: str, allowed: tuple[str, ...]) -> str:
    value: str = setting(ctx, name)
    if value not in allowed:
        raise folders.ImagesError(f"{name}={value!r}: unknown; expected {' or '.join(map(repr, allowed))}")
    return value


def workers(ctx: Context) -> int:
    """Return the number of processes or threads that read; images in memory need none."""
    return 0 if in_memory(ctx) else int(ctx.config.num_workers)


def _augment() -> Any:
    """Import the augmentations late: they need torch, which other frameworks' environments do not have."""
    from common.images import augment

    return augment
