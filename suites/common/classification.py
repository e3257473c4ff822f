"""The steps that the image classification suites share; a suite adds its model, or replaces a step.

What they read of the config, besides what every training has: ``dataset`` (imagenet or digits),
``image_size``, ``resize_size``, ``num_classes``, ``label_smoothing``, and a schedule's epochs:
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
"""Images in ImageNet's training set: how long an epoch of synthetic ones is."""


def create_train_data(ctx: Context) -> Iterable[Images]:
    """Give this rank's share of every epoch."""
    config, source = ctx.config, _train_source(ctx)
    share = images.TrainShare(len(source), config.train_batch_size, ctx.rank, ctx.world_size, ctx.seed)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images]:
    """Give this rank's share of the validation set."""
    source = _eval_source(ctx)
    share = images.EvalShare(len(source), ctx.config.eval_batch_size, ctx.rank, ctx.world_size)
    return Loader(source, share, _workers(ctx), pin=_pin(ctx))


def prepare_batch(ctx: Context, batch: Images) -> Images:
    """Bring the batch to the device and normalise it there."""
    return images.prepare(batch, ctx.device, channels_last=ctx.config.channels_last)


def calculate_loss(ctx: Context, model: nn.Module, batch: Images) -> Tensor:
    """Give the cross entropy."""
    smoothing = ctx.config.label_smoothing
    return functional.cross_entropy(model(batch.pixels), batch.labels, label_smoothing=smoothing)


def evaluate_batch(ctx: Context, model: nn.Module, batch: Images) -> Tensor:  # noqa: ARG001 - a step's signature
    """Count the images whose class is the first guess, and one of five; add up the loss."""
    scores = model(batch.pixels).float()
    hits = scores.topk(min(5, scores.shape[1]), dim=1).indices == batch.labels[:, None]
    loss = functional.cross_entropy(scores, batch.labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss, torch.full_like(loss, len(scores))])


def summarize(ctx: Context, sums: list[float]) -> dict[str, float]:  # noqa: ARG001 - a step's signature
    """Turn the sums over the whole set into shares of it."""
    first, five, loss, count = sums
    return {"top1": first / count, "top5": five / count, "loss": loss / count}


def count_samples(ctx: Context, batch: Images) -> int:  # noqa: ARG001 - a step's signature
    """Count the images."""
    return len(batch.labels)


def create_scheduler(ctx: Context, optimizer: torch.optim.Optimizer) -> schedules.Scheduler:
    """Give the schedule, with what is told in epochs turned into this shape's steps."""
    config = Config({**ctx.config.as_dict(), **schedule_in_steps(ctx)})
    return schedules.create(config, optimizer)


def schedule_in_steps(ctx: Context) -> dict[str, int]:
    """Give in steps what the config tells in epochs; what it tells in steps stands."""
    config = ctx.config
    told = {"lr_step_steps": config.lr_step_epochs, "lr_warmup_steps": config.lr_warmup_epochs}
    if config.lr_schedule in ("linear", "cosine") and config.max_steps is None:
        told["lr_decay_steps"] = config.max_epochs
    wanted = {key: epochs for key, epochs in told.items() if epochs and not getattr(config, key)}
    per_epoch = steps_per_epoch(ctx) if wanted else 0
    return {key: max(1, round(epochs * per_epoch)) for key, epochs in wanted.items()}


def steps_per_epoch(ctx: Context) -> int:
    """Count the optimizer steps that one pass over the training set takes on so many cards."""
    config = ctx.config
    batches = _train_samples(ctx) // (config.train_batch_size * ctx.world_size)
    return int(batches // config.gradient_accumulation_steps)


# -- where the images come from ------------------------------------------------------------------------------


def _train_source(ctx: Context) -> images.Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, _train_samples(ctx), config.train_batch_size)
    if config.dataset == "digits":
        part = digits.load(config.image_size, train=True)
        labels = torch.from_numpy(_told(ctx, part.labels.numpy()))
        return images.MemoryImages(part.pixels, labels)
    listing = _listing(_folder(ctx, "train"))
    return images.FolderImages(
        listing, config.image_size, images.random_box, _told(ctx, listing.labels), mirror=True, seed=ctx.seed
    )


def _eval_source(ctx: Context) -> images.Source:
    config = ctx.config
    if ctx.synthetic:
        return _synthetic(ctx, config.eval_batch_size * ctx.world_size, config.eval_batch_size)
    if config.dataset == "digits":
        return digits.load(config.image_size, train=False)
    listing = _listing(_folder(ctx, "val")).relabelled(_listing(_folder(ctx, "train")).classes)
    box = images.center_box(config.image_size / config.resize_size)
    return images.FolderImages(listing, config.image_size, box, listing.labels)


def _synthetic(ctx: Context, samples: int, batch_size: int) -> images.Source:
    config = ctx.config
    shape = images.Shape(batch_size, config.image_size, config.num_classes)
    return images.SyntheticImages(samples, shape, seeds.derive(ctx.seed, seeds.RANK, ctx.rank), pin=_pin(ctx))


def _told(ctx: Context, labels: Array) -> Array:
    return images.shuffled(labels, ctx.seed) if ctx.config.shuffle_labels else labels


def _train_samples(ctx: Context) -> int:
    if ctx.config.dataset == "digits":
        return digits.TRAIN
    return IMAGENET_TRAIN if ctx.synthetic else len(_listing(_folder(ctx, "train")))


def _folder(ctx: Context, part: str) -> Path:
    told = ctx.config.train_data if part == "train" else ctx.config.eval_data
    if ctx.data_dir is None:
        raise images.ImagesError("no data_dir: give the folder that holds train/ and val/, or --synthetic")
    return ctx.data_dir / (told or part)


_listing = cache(images.list_folder)  # once per process: data and schedule both ask


def _workers(ctx: Context) -> int:
    """Count the loader processes: images in memory need none."""
    return 0 if ctx.synthetic or ctx.config.dataset == "digits" else int(ctx.config.num_workers)


def _pin(ctx: Context) -> bool:
    return devices.pins(ctx.device)
