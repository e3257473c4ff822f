"""The steps that image classification suites share; a suite adds its model and may replace steps.

The steps read these config keys in addition to those of every training: ``dataset`` (imagenet or digits),
``train_data``, ``eval_data``, ``image_size``, ``resize_size``, ``num_classes``, ``label_smoothing``, and those of
``OPTIONAL``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from common.images import augment, digits, folders
from common.images.encoded import Encoded, EncodedImages
from common.images.folders import Images
from common.images.mixing import Mix, Mixed
from common.shares import Array, EvalShare, Repeated, Source, TrainShare
from common.steps import Loader, normalised
from flagperf_driver import seeds
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.pytorch import device as devices

OPTIONAL = {
    "reader": "pillow",  # decodes in worker processes; "torchvision": on the device
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

IMAGENET_TRAIN = 1_281_167
"""The number of images in ImageNet's training set, also of an epoch of synthetic images."""
SYNTHETIC_BATCHES = 4


class Prepared(NamedTuple):
    """A batch on the device."""

    pixels: Tensor
    """(N, 3, H, W), normalised."""
    labels: Tensor
    mix: Mix | None = None
    """How each image was mixed with its neighbour, the image before it in the batch."""


def classification(create_model: Callable[[Context], nn.Module]) -> Steps:
    """Return all steps of a suite that classifies images."""
    return Steps(
        create_model=create_model,
        create_train_data=create_train_data,
        create_eval_data=create_eval_data,
        prepare_batch=prepare_batch,
        calculate_loss=calculate_loss,
        evaluate_batch=evaluate_batch,
        summarize=summarize,
        count_samples=count_samples,
    )


def setting(ctx: Context, name: str) -> Any:
    """Return an optional config key."""
    return getattr(ctx.config, name) if name in ctx.config else OPTIONAL[name]


def create_train_data(ctx: Context) -> Iterable[Images | Encoded]:
    """Return this rank's share of every epoch."""
    batch_size, source = ctx.config.train_batch_size, _train_source(ctx)
    repeats, mixup, cutmix = (setting(ctx, name) for name in ("repeats", "mixup", "cutmix"))
    if mixup or cutmix:
        source = Mixed(source, ctx.config.image_size, mixup, cutmix, ctx.seed)
    share = TrainShare(len(source), batch_size, ctx.rank, ctx.world_size, ctx.seed, repeats=repeats)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images | Encoded]:
    """Return this rank's share of the validation set."""
    source = _eval_source(ctx)
    share = EvalShare(len(source), ctx.config.eval_batch_size, ctx.rank, ctx.world_size)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def prepare_batch(ctx: Context, batch: Images | Encoded) -> Prepared:
    """Copy the batch to the device as bytes, or decode it there, then mirror, normalise and mix it there."""
    labels, mirrored, mix = devices.to_device((batch.labels, batch.mirrored, batch.mix), ctx.device)
    if isinstance(batch, Encoded):
        pixels = decoded(ctx, batch)
    else:
        pixels = devices.to_device(batch.pixels, ctx.device).permute(0, 3, 1, 2)  # channels last in memory, as decoded
    if mirrored is not None:
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    pixels = normalised(ctx, pixels, setting(ctx, "pixel_mean"), setting(ctx, "pixel_deviation"))
    return Prepared(pixels if mix is None else mixed(pixels, mix), labels, mix)


def mixed(pixels: Tensor, mix: Mix) -> Tensor:
    """Return the images mixed with their neighbours."""
    neighbours = pixels.roll(1, 0)
    if mix.box is None:
        return neighbours.lerp_(pixels, mix.share)
    top, bottom, left, right = mix.box
    pixels[..., top:bottom, left:right] = neighbours[..., top:bottom, left:right]
    return pixels


def calculate_loss(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:
    """Return the cross entropy; of mixed images, that of both labels by their shares."""
    scores, smoothing = model(batch.pixels), ctx.config.label_smoothing
    loss = functional.cross_entropy(scores, batch.labels, label_smoothing=smoothing)
    if batch.mix is None:
        return loss
    other = functional.cross_entropy(scores, batch.labels.roll(1, 0), label_smoothing=smoothing)
    return other.lerp(loss, batch.mix.share)


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


def count_samples(ctx: Context, batch: Images | Encoded | Prepared) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of images."""
    return len(batch.labels)


# -- sources of images ---------------------------------------------------------------------------------------


def _train_source(ctx: Context) -> Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, _train_samples(ctx), config.train_batch_size, config.image_size)
    if config.dataset == "digits":
        part = digits.load(config.image_size, train=True)
        return folders.MemoryImages(part.pixels, _training_labels(ctx, part.labels))
    listing = _listing(_folder(ctx, "train"))
    if len(listing.classes) != config.num_classes:
        raise folders.ImagesError(
            f"{listing.root}: {len(listing.classes)} class folders; expected num_classes = {config.num_classes}"
        )
    size, resampling, mean = config.image_size, _resampling(ctx), tuple(setting(ctx, "pixel_mean"))
    name, share, deviation = setting(ctx, "augment"), setting(ctx, "erase"), tuple(setting(ctx, "pixel_deviation"))
    return _reader(ctx)(
        listing,
        size,
        folders.shifted_box(size / config.resize_size) if _shifted(ctx) else folders.random_box,
        _training_labels(ctx, listing.labels),
        resampling=resampling,
        mirror=True,
        change=augment.create(name, size, mean, resampling) if name else None,
        erase=augment.Eraser(share, mean, deviation, noise=setting(ctx, "erase_noise")) if share else None,
        seed=ctx.seed,
    )


def _eval_source(ctx: Context) -> Source:
    config, size = ctx.config, setting(ctx, "eval_size") or ctx.config.image_size
    if ctx.synthetic:
        return _synthetic(ctx, config.eval_batch_size * ctx.world_size, config.eval_batch_size, size)
    if config.dataset == "digits":
        return digits.load(size, train=False)
    listing = _listing(_folder(ctx, "val")).relabelled(_listing(_folder(ctx, "train")).classes)
    box = folders.whole_box if _shifted(ctx) else folders.center_box(size / config.resize_size)
    return _reader(ctx)(listing, size, box, listing.labels, resampling=_resampling(ctx))


def _synthetic(ctx: Context, samples: int, batch_size: int, size: int) -> Source:
    """Return batches of random bytes that cost no more than the copy to the device."""
    shape = folders.BatchShape(batch_size, size, ctx.config.num_classes)
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


def _reader(ctx: Context) -> type[folders.FolderImages]:
    if _one_of(ctx, "reader", ("pillow", "torchvision")) == "pillow":
        return folders.FolderImages
    if setting(ctx, "augment") or setting(ctx, "erase"):
        raise folders.ImagesError(
            "reader='torchvision' decodes on the device, but augment and erase change pictures on the host; "
            "set reader = 'pillow'"
        )
    return EncodedImages


def _shifted(ctx: Context) -> bool:
    return _one_of(ctx, "crop", ("area", "shifted")) == "shifted"


def _resampling(ctx: Context) -> Image.Resampling:
    return Image.Resampling[_one_of(ctx, "interpolation", ("bilinear", "bicubic")).upper()]


def _one_of(ctx: Context, name: str, allowed: tuple[str, ...]) -> str:
    value: str = setting(ctx, name)
    if value not in allowed:
        raise folders.ImagesError(f"{name}={value!r}: unknown; expected {' or '.join(map(repr, allowed))}")
    return value


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; images in memory need no process."""
    return 0 if ctx.synthetic or ctx.config.dataset == "digits" else int(ctx.config.num_workers)


# -- on the device -------------------------------------------------------------------------------------------


def decoded(ctx: Context, batch: Encoded) -> Tensor:
    """Return the pictures as bytes, (N, 3, H, W): decoded on the device, cut to their boxes and resized."""
    side = [batch.size, batch.size]
    interpolation = InterpolationMode[_resampling(ctx).name]
    pictures = (
        transforms.resized_crop(picture, top, left, bottom - top, right - left, side, interpolation, antialias=True)
        for picture, (left, top, right, bottom) in zip(_pictures(ctx, batch), batch.boxes.tolist(), strict=True)
    )
    return torch.stack(list(pictures)).contiguous(memory_format=torch.channels_last)


def _pictures(ctx: Context, batch: Encoded) -> Iterator[Tensor]:
    parts = torch.as_tensor(batch.data).tensor_split(torch.as_tensor(batch.ends[:-1]))
    shapes = batch.shapes.tolist()
    files = [part for part, (height, _) in zip(parts, shapes, strict=True) if not height]
    from_files = iter(_from_jpeg(ctx, batch, files))
    for part, (height, width) in zip(parts, shapes, strict=True):
        yield part.view(height, width, 3).permute(2, 0, 1).to(ctx.device) if height else next(from_files)


def _from_jpeg(ctx: Context, batch: Encoded, files: list[Tensor]) -> list[Tensor]:
    """Return the decoded files; the error of a damaged file names it."""
    try:
        return decode_jpeg(files, ImageReadMode.RGB, ctx.device) if files else []  # type: ignore[no-any-return]
    except RuntimeError as problem:
        names = [name for name, (height, _) in zip(batch.names, batch.shapes.tolist(), strict=True) if not height]
        for name, file in zip(names, files, strict=True):
            try:
                decode_jpeg([file], ImageReadMode.RGB, ctx.device)
            except RuntimeError as error:
                raise folders.ImagesError(
                    f"{name}: cannot be read as an image: {error}; copy the file again"
                ) from problem
        raise


def _pin(ctx: Context) -> bool:
    return devices.pins(ctx.device)
