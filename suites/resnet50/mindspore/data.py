"""Images: folders, handwritten digits or synthetic images, in the same batches as for other frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from common.images import sources
from common.images.folders import Images
from common.reading import Reader

if TYPE_CHECKING:
    from flagperf_driver.mindspore import Context


def create_train_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of every epoch."""
    source = sources.train(ctx)
    return Reader(source, sources.train_share(ctx, source), sources.workers(ctx))


def create_eval_data(ctx: Context) -> Iterable[Images]:
    """Return this rank's share of the validation set."""
    source = sources.evaluation(ctx)
    return Reader(source, sources.eval_share(ctx, source), sources.workers(ctx))
