"""The evaluation of one rank's share of the evaluation set."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch import nn

from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.feed import preparation
from flagperf_driver.pytorch.hooks import forward_context
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.training.evaluation import Loading
from flagperf_driver.training.timeline import Marks
from flagperf_driver.training.trainer import RankEvaluation


def evaluate(
    ctx: PyTorchContext,
    steps: PyTorchSteps,
    model: nn.Module,
    data: Iterable[Any],
    marks: Marks,
    beat: Callable[[], None],
) -> RankEvaluation:
    """Return the results of this rank's batches; the model is left in training mode."""
    bare = distributed.unwrap(model)
    distributed.average_statistics(bare)
    autocast = forward_context(ctx.hooks, ctx.config.precision, ctx.device)
    sums: list[torch.Tensor] = []
    predictions: list[Any] = []
    samples, batches = 0, Loading(map(preparation(ctx, steps), data), marks)
    model.eval()
    with torch.no_grad(), distributed.unsharded(bare):
        for batch in batches:
            with autocast:
                result = steps.evaluate_batch(ctx, bare, batch)
            if isinstance(result, list):
                predictions += result
            else:
                sums.append(result)
            samples += steps.count_samples(ctx, batch)
            beat()
    model.train()
    # On the host, because some devices do not support float64.
    added = torch.stack(sums).cpu().double().sum(0).tolist() if sums else []
    if not ctx.parallel.is_counted(ctx.rank):
        added, predictions = [], []
    return RankEvaluation(added, predictions, samples, batches.seconds())
