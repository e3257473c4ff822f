"""The steps of FLUX.1's training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import flow
import numpy as np
import torch
from common.shares import Draw, EvalShare, Repeated, TrainShare
from common.steps import Loader
from digit_drawings import SHOWN, SIDE, DigitPictures, Drawing, Evaluation, judge
from pictures import TIME_STEPS, Album, Batch, EncodedPictures, RandomPictures, Samples
from torch import Tensor, nn
from transformer import Shape, Transformer

from flagperf_driver import seeds
from flagperf_driver.pytorch import Context, Steps, sharding
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch.steps import compile_methods
from flagperf_driver.training.steps import Drawings

SYNTHETIC_BATCHES = 2
SYNTHETIC_STEPS = 100_000
"""The length of an epoch of random pictures."""


def create_model(ctx: Context) -> nn.Module:
    """Return the transformer without memory for its weights; ``model_to_ddp`` draws them where they are needed."""
    with torch.device("meta"):
        return Transformer(Shape.of(ctx.config))


def convert_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Choose which activations the backward pass computes again; compiling has to know it."""
    sharding.recompute(model.blocks, ctx.config.checkpoint_activations)
    return model


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile one block of each kind for all of its kind, and the last layers."""
    compile_methods(ctx, [*model.blocks, model.last], "forward")
    return model


# -- data --------------------------------------------------------------------------------------------------


def create_train_data(ctx: Context) -> Loader:
    """Return this rank's share of every epoch."""
    size = ctx.config.train_batch_size
    if ctx.synthetic:
        source: Any = _random(ctx, size, training=True)
    else:
        shuffle_seed = ctx.seed if ctx.config.shuffle_labels else None
        source = Samples(_album(ctx, ctx.config.train_data, training=True), ctx.config, ctx.seed, shuffle_seed)
    share = TrainShare(len(source), size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return _loader(ctx, source, share)


def create_eval_data(ctx: Context) -> Loader:
    """Return this rank's share of the pictures of the evaluation; at the small scale also of drawings."""
    size = ctx.config.eval_batch_size
    if ctx.synthetic:
        source: Any = _random(ctx, size, training=False)
    else:
        album = _album(ctx, ctx.config.eval_data, training=False)
        if isinstance(album, DigitPictures):
            evaluation = Evaluation(album, ctx.config)
            return _loader(ctx, evaluation, evaluation.share(size, ctx.data_rank, ctx.data_ranks))
        source = Samples(album, ctx.config)
    return _loader(ctx, source, EvalShare(len(source), size, ctx.data_rank, ctx.data_ranks))


def _loader(ctx: Context, source: Any, share: Any) -> Loader:
    workers = 0 if ctx.synthetic else ctx.config.num_workers  # random batches need no process
    return Loader(source, share, workers, pin=devices.pins(ctx.device))


def _album(ctx: Context, folder: str | None, *, training: bool) -> Album:
    if folder is None:
        return DigitPictures(ctx.config, training=training)
    if ctx.data_dir is None:
        raise ValueError(f"{folder}: no data directory; pass --data-dir, or --synthetic to measure throughput only")
    return EncodedPictures(ctx.data_dir / folder, ctx.data_dir / Path(ctx.config.empty_data), ctx.config)


def _random_batches(size: int) -> int:
    """Return the number of different random batches; they contain every time step."""
    return max(SYNTHETIC_BATCHES, math.ceil(TIME_STEPS / size))


def _random(ctx: Context, size: int, *, training: bool) -> Repeated:
    """Return batches that cost no more than the copy to the device."""
    seed, count = seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank), _random_batches(size)
    steps = SYNTHETIC_STEPS if training else count
    samples = Samples(RandomPictures(ctx.config, seed, size * count), ctx.config, seed if training else None)
    numbers = np.arange(size * count).reshape(count, size)
    return Repeated([samples[Draw(0, row)] for row in numbers], size * ctx.data_ranks * steps)


# -- training and evaluation -------------------------------------------------------------------------------


def calculate_loss(ctx: Context, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the mean squared error of the velocity."""
    return flow.losses(model, batch).mean()


def evaluate_batch(ctx: Context, model: nn.Module, batch: Batch | Drawing) -> Tensor:
    """Return the sums of the losses by time step, and the numbers of pictures.

    At the small scale also the numbers of right and of all drawings, and the pixels of the first drawings: one rank
    makes a drawing, and the others add 0 to its pixels.
    """
    if isinstance(batch, Drawing):
        latents = flow.draw(model, batch.noise, batch.text, batch.pooled, ctx.config.drawing_steps)
        right = (judge().classes(latents) == batch.classes).float().sum()
        shown = latents.new_zeros(SHOWN + 1, SIDE * SIDE)  # the last row is for all others
        shown.index_add_(0, batch.numbers.clamp(max=SHOWN), latents.nan_to_num(0).clamp(-1, 1).flatten(1))
        counts = torch.stack((right, torch.full_like(right, len(latents))))
        return torch.cat((latents.new_zeros(2 * TIME_STEPS), counts, shown[:SHOWN].flatten()))
    sums = flow.losses_by_step(model, batch)
    return torch.cat((sums, sums.new_zeros(2 + SHOWN * SIDE * SIDE))) if ctx.config.drawings else sums


def summarize(ctx: Context, sums: list[float]) -> dict[str, float | Drawings]:
    """Return the mean of the time steps' mean losses.

    At the small scale also the share of drawings that show another digit than the wanted one, and some drawings.
    """
    totals, counts, rest = sums[:TIME_STEPS], sums[TIME_STEPS : 2 * TIME_STEPS], sums[2 * TIME_STEPS :]
    if missing := [step for step, count in enumerate(counts) if not count]:
        raise ValueError(f"the evaluation has no picture for time step {missing[0]}; copy the evaluation's data again")
    loss = sum(total / count for total, count in zip(totals, counts, strict=True)) / TIME_STEPS
    if not rest:
        return {"validation_loss": loss}
    right, drawings, *shown = rest
    pixels = bytes(round(127.5 * (pixel + 1)) for pixel in shown[: ctx.config.drawings * SIDE * SIDE])
    metrics = {"validation_loss": loss, "misread_drawings": 1 - right / max(drawings, 1)}
    return {**metrics, "digits_0_to_9": Drawings(SIDE, SIDE, pixels)}


def count_samples(ctx: Context, batch: Batch | Drawing) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of pictures."""
    return len(batch.noise)


STEPS = Steps(
    create_model=create_model,
    convert_model=convert_model,
    compile_model=compile_model,
    create_train_data=create_train_data,
    create_eval_data=create_eval_data,
    calculate_loss=calculate_loss,
    evaluate_batch=evaluate_batch,
    summarize=summarize,
    count_samples=count_samples,
)
