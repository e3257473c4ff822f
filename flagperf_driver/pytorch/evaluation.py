"""One look at the whole evaluation set: every sample once, whatever share each rank has."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch import nn

from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.feed import feed
from flagperf_driver.pytorch.hooks import forward
from flagperf_driver.pytorch.steps import Context, Steps


class EvaluationError(ValueError):
    """The suite's evaluation gives what cannot be a result."""


def evaluate(
    ctx: Context, steps: Steps, model: nn.Module, data: Iterable[Any], beat: Callable[[], None]
) -> dict[str, float]:
    """The metrics, the same on every rank; the model is left training."""
    bare = distributed.unwrap(model)
    distributed.average_statistics(bare)
    autocast = forward(ctx.hooks, ctx.config.precision, ctx.device)
    parts: list[torch.Tensor] = []
    model.eval()
    with torch.no_grad(), distributed.whole(bare):
        for batch in feed(ctx, steps, data):
            with autocast:
                parts.append(steps.evaluate_batch(ctx, bare, batch))
            beat()
    model.train()
    # On the host: not every device has float64.
    sums: list[float] = torch.stack(parts).cpu().double().sum(0).tolist() if parts else []
    return _summary(ctx, steps, _over_ranks(sums, ctx.device))


def _over_ranks(sums: list[float], device: torch.device) -> list[float]:
    """A rank without a batch does not know how many sums there are, and adds nothing."""
    width = int(distributed.most([len(sums)], device)[0])
    if not width:
        raise EvaluationError("the evaluation data give no batch on any rank: is the evaluation set empty?")
    if sums and len(sums) != width:
        raise EvaluationError(f"evaluate_batch gives {len(sums)} sums here and {width} on another rank")
    return distributed.total(sums or [0.0] * width, device)


def _summary(ctx: Context, steps: Steps, sums: list[float]) -> dict[str, float]:
    metrics = steps.summarize(ctx, sums)
    if ctx.metric and ctx.metric not in metrics:
        there = ", ".join(sorted(metrics)) or "nothing"
        raise EvaluationError(f"summarize gives {there}; the suite's metric is {ctx.metric!r} (suite.toml)")
    return {name: float(value) for name, value in metrics.items()}
