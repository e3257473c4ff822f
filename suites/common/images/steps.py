"""The steps that image classification suites share; a suite adds its model and may replace steps.

They read the config keys of ``sources.py`` and ``label_smoothing``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from common.images import folders, sources
from common.images.dali import Decoder, Form
from common.images.encoded import Encoded, whole
from common.images.folders import Images
from common.images.mixing import Mix
from common.shares import Share, Source
from common.steps import Loader, normalised
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.pytorch import device as devices


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
        summarize=sources.summarize,
        count_samples=sources.count_samples,
    )


def create_train_data(ctx: Context) -> Iterable[Images | Encoded]:
    """Return this rank's share of every epoch."""
    source = sources.train(ctx, functools.partial(_pinned, ctx))
    share, form = sources.train_share(ctx, source), (ctx.config.train_batch_size, ctx.config.image_size)
    return _loader(ctx, source, share, *form)


def create_eval_data(ctx: Context) -> Iterable[Images | Encoded]:
    """Return this rank's share of the validation set."""
    source = sources.evaluation(ctx, functools.partial(_pinned, ctx))
    share, form = sources.eval_share(ctx, source), (ctx.config.eval_batch_size, sources.eval_size(ctx))
    return _loader(ctx, source, share, *form)


def _loader(ctx: Context, source: Source, share: Share, batch_size: int, size: int) -> Loader:
    workers = sources.workers(ctx)
    if sources.reader(ctx) != "dali":
        return Loader(source, share, workers, pin=_pin(ctx))
    gpu = ctx.device.index if ctx.device.type == "cuda" and torch.version.cuda else None
    decoder = Decoder(Form(batch_size, size, sources.resampling(ctx), max(workers, 1), gpu))
    return _Decoded(decoder, source, share, workers)


class _Decoded(Loader):
    """Reads files as ``Loader``; DALI decodes them in advance."""

    def __init__(self, decoder: Decoder, source: Source, share: Share, num_workers: int) -> None:
        super().__init__(source, share, num_workers)
        self._decoder = decoder

    def __iter__(self) -> Iterator[Images]:
        return self._decoder.decode(super().__iter__())


def prepare_batch(ctx: Context, batch: Images | Encoded) -> Prepared:
    """Bring the batch to the device as bytes, or decode it there, then mirror, normalise and mix it there."""
    labels, mirrored, mix = devices.to_device((batch.labels, batch.mirrored, batch.mix), ctx.device)
    if isinstance(batch, Encoded):
        pixels = decoded(ctx, batch)
    else:
        # Channels last in memory, as decoded. DALI's tensors are on the device already, and are taken without a copy.
        bytes_read = torch.from_dlpack(batch.pixels) if sources.reader(ctx) == "dali" else batch.pixels
        pixels = devices.to_device(bytes_read, ctx.device).permute(0, 3, 1, 2)
    if mirrored is not None:
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    pixels = normalised(ctx, pixels, sources.setting(ctx, "pixel_mean"), sources.setting(ctx, "pixel_deviation"))
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


def _pinned(ctx: Context, batch: Images) -> Images:
    """Copy a synthetic batch to memory that the device reads faster."""
    host = devices.to_device(batch, torch.device("cpu"))
    return Images(*(part.pin_memory() for part in host[:2])) if _pin(ctx) else host


# -- on the device -------------------------------------------------------------------------------------------


def decoded(ctx: Context, batch: Encoded) -> Tensor:
    """Return the pictures as bytes, (N, 3, H, W): decoded on the device, cut to their boxes and resized."""
    side = [batch.size, batch.size]
    interpolation = InterpolationMode[sources.resampling(ctx).name]
    pictures = []
    for picture, box in zip(_pictures(ctx, batch), batch.boxes.tolist(), strict=True):
        left, top, right, bottom = whole(box, picture.shape[2], picture.shape[1])
        height, width = bottom - top, right - left
        pictures.append(transforms.resized_crop(picture, top, left, height, width, side, interpolation, antialias=True))
    return torch.stack(pictures).contiguous(memory_format=torch.channels_last)


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
