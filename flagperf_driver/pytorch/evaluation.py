"""An evaluation of the whole evaluation set: every sample counts once, however the ranks share them."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch import nn

from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.feed import feed
from flagperf_driver.pytorch.hooks import forward_context
from flagperf_driver.pytorch.steps import Context, Steps


class EvaluationError(ValueError):
    """The suite's evaluation returned an invalid result."""


def evaluate(
    ctx: Context, steps: Steps, model: nn.Module, data: Iterable[Any], beat: Callable[[], None]
) -> dict[str, float]:
    """Return the metrics, the same on every rank. The model is in training mode afterwards."""
    bare = distributed.unwrap(model)
    distributed.average_statistics(bare)
    autocast = forward_context(ctx.hooks, ctx.config.precision, ctx.device)
    parts: list[torch.Tensor] = []
    model.eval()
    with torch.no_grad(), distributed.unsharded(bare):
        for batch in feed(ctx, steps, data):
            with autocast:
                parts.append(steps.evaluate_batch(ctx, bare, batch))
            beat()
    model.train()
    # On the host, because some devices do not support float64.
    sums: list[float] = torch.stack(parts).cpu().double().sum(0).tolist() if parts else []
    return _summary(ctx, steps, _over_ranks(sums, ctx.device))


def _over_ranks(sums: list[float], device: torch.device) -> list[float]:
    """Add the sums over all ranks; a rank without a batch adds zeros."""
    width = int(distributed.maximum([len(sums)], device)[0])
    if not width:
        raise EvaluationError("no rank got an evaluation batch; check that the evaluation set is not empty")
    if sums and len(sums) != width:
        raise EvaluationError(f"evaluate_batch() returned {len(sums)} sums on this rank and {width} on another rank")
    return distributed.total(sums or [0.0] * width, device)


def _summary(ctx: Context, steps: Steps, sums: list[float]) -> dict[str, float]:
    metrics = steps.summarize(ctx, sums)
    if ctx.metric and ctx.metric not in metrics:
        got = ", ".join(sorted(metrics)) or "no metrics"
        raise EvaluationError(f"summarize() returned {got}; expected the suite's metric {ctx.metric!r} (suite.toml)")
    return {name: float(value) for name, value in metrics.items()}
