"""Images for TensorFlow: folders, TFRecord files, handwritten digits or synthetic images, in the same batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from common.images import sources
from common.images.folders import Images
from common.reading import Reader
from common.shares import Source
from records import RecordImages, is_record_folder

if TYPE_CHECKING:
    from flagperf_driver.tensorflow2 import Context


def create_train_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of every epoch."""
    source = _records(ctx, train=True) or sources.train(ctx)
    return Reader(source, sources.train_share(ctx, source), sources.workers(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of the validation set."""
    source = _records(ctx, train=False) or sources.evaluation(ctx)
    return Reader(source, sources.eval_share(ctx, source), sources.workers(ctx))


def _records(ctx: Context, *, train: bool) -> Source | None:
    """Return the images of the TFRecord files in the data directory; None if the case reads other data."""
    if ctx.synthetic or ctx.config.dataset != "imagenet" or ctx.data_dir is None:
        return None
    folder = ctx.data_dir / (ctx.config.train_data if train else ctx.config.eval_data)
    return RecordImages(folder, ctx, train=train) if is_record_folder(folder) else None
