"""The steps that image classification suites share; a suite adds its model and may replace steps.

The steps read these config keys in addition to those of every training: ``dataset`` (imagenet or digits),
``image_size``, ``resize_size``, ``num_classes``, ``label_smoothing``, and the schedule in epochs:
``lr_step_epochs``, ``lr_warmup_epochs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from common import digits, images
from common.images import Array, Images, Loader
from flagperf_driver import seeds
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import schedules

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context

IMAGENET_TRAIN = 1_281_167
"""The number of images in ImageNet's training set, also of an epoch of synthetic images."""


def create_train_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of every epoch."""
    config, source = ctx.config, _train_source(ctx)
    share = images.TrainShare(len(source), config.train_batch_size, ctx.rank, ctx.world_size, ctx.seed)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of the validation set."""
    source = _eval_source(ctx)
    share = images.EvalShare(len(source), ctx.config.eval_batch_size, ctx.rank, ctx.world_size)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def prepare_batch(ctx: Context, batch: Images) -> Images:
    """Copy the batch to the device and normalise it there."""
    return images.prepare(batch, ctx.device, channels_last=ctx.config.channels_last)


def calculate_loss(ctx: Context, model: nn.Module, batch: Images) -> Tensor:
    """Return the cross entropy."""
    smoothing = ctx.config.label_smoothing
    return functional.cross_entropy(model(batch.pixels), batch.labels, label_smoothing=smoothing)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Images) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the number of correct top-1 and top-5 predictions, the sum of the loss, and the number of images."""
    scores = model(batch.pixels).float()
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == batch.labels[:, None]
    loss = functional.cross_entropy(scores, batch.labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss, torch.full_like(loss, len(scores))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Return top1, top5 and the mean loss over the whole set."""
    first, five, loss, count = sums
    return {"top1": first / count, "top5": five / count, "loss": loss / count}


def count_samples(ctx: Context, batch: Images) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of images."""
    return len(batch.labels)


def create_scheduler(ctx: Context, optimizer: torch.optim.Optimizer) -> schedules.Scheduler:
    """Return the schedule, with settings in epochs converted to this shape's steps."""
    config = Config({**ctx.config.as_dict(), **schedule_in_steps(ctx)})
    return schedules.create(config, optimizer)


def schedule_in_steps(ctx: Context) -> dict[str, int]:
    """Convert the config's settings in epochs to steps; settings in steps take precedence."""
    config = ctx.config
    in_epochs = {"lr_step_steps": config.lr_step_epochs, "lr_warmup_steps": config.lr_warmup_epochs}
    if config.lr_schedule in ("linear", "cosine") and config.max_steps is None:
        in_epochs["lr_decay_steps"] = config.max_epochs
    missing = {key: epochs for key, epochs in in_epochs.items() if epochs and not getattr(config, key)}
    per_epoch = steps_per_epoch(ctx) if missing else 0
    return {key: max(1, round(epochs * per_epoch)) for key, epochs in missing.items()}


def steps_per_epoch(ctx: Context) -> int:
    """Return the number of optimizer steps in one pass over the training set."""
    config = ctx.config
    batches = _train_samples(ctx) // (config.train_batch_size * ctx.world_size)
    return int(batches // config.gradient_accumulation_steps)


# -- sources of images ---------------------------------------------------------------------------------------


def _train_source(ctx: Context) -> images.ImageSource:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, _train_samples(ctx), config.train_batch_size)
    if config.dataset == "digits":
        part = digits.load(config.image_size, train=True)
        labels = torch.from_numpy(_training_labels(ctx, part.labels.numpy()))
        return images.MemoryImages(part.pixels, labels)
    listing = _listing(_folder(ctx, "train"))
    if len(listing.classes) != config.num_classes:
        raise images.ImagesError(
            f"{listing.root}: {len(listing.classes)} class folders; expected num_classes = {config.num_classes}"
        )
    return images.FolderImages(
        listing, config.image_size, images.random_box, _training_labels(ctx, listing.labels), mirror=True, seed=ctx.seed
    )


def _eval_source(ctx: Context) -> images.ImageSource:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, config.eval_batch_size * ctx.world_size, config.eval_batch_size)
    if config.dataset == "digits":
        return digits.load(config.image_size, train=False)
    listing = _listing(_folder(ctx, "val")).relabelled(_listing(_folder(ctx, "train")).classes)
    box = images.center_box(config.image_size / config.resize_size)
    return images.FolderImages(listing, config.image_size, box, listing.labels)


def _synthetic(ctx: Context, samples: int, batch_size: int) -> images.ImageSource:
    config = ctx.config
    shape = images.BatchShape(batch_size, config.image_size, config.num_classes)
    return images.SyntheticImages(samples, shape, seeds.derive(ctx.seed, seeds.RANK, ctx.rank), pin=_pin(ctx))


def _training_labels(ctx: Context, labels: Array) -> Array:
    return images.shuffled(labels, ctx.seed) if ctx.config.shuffle_labels else labels


def _train_samples(ctx: Context) -> int:
    if ctx.config.dataset == "digits":
        return digits.TRAIN
    return IMAGENET_TRAIN if ctx.synthetic else len(_listing(_folder(ctx, "train")))


def _folder(ctx: Context, part: str) -> Path:
    folder = ctx.config.train_data if part == "train" else ctx.config.eval_data
    if ctx.data_dir is None:
        raise images.ImagesError("data_dir is not set; pass --data-dir (the folder of train/ and val/) or --synthetic")
    return ctx.data_dir / (folder or part)


_listing = cache(images.list_folder)  # the data and the schedule share one listing per process


def _workers(ctx: Context) -> int:
    """Return the number of loader processes; images in memory need no process."""
    return 0 if ctx.synthetic or ctx.config.dataset == "digits" else int(ctx.config.num_workers)


def _pin(ctx: Context) -> bool:
    return devices.pins(ctx.device)
