"""The cross-entropy of a large vocabulary by chunks of tokens: the logits of all tokens are never in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor


def row_statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each row: the largest logit, the sum of exp(logit - largest), and the target's logit.

    A target outside of these logits belongs to another rank; its logit is 0 here.
    """
    logits, last = logits.float(), logits.shape[-1] - 1
    largest = logits.amax(-1)
    total = (logits - largest[:, None]).exp().sum(-1)
    own = (targets >= 0) & (targets <= last)
    of_target = logits.gather(-1, targets.clamp(0, last)[:, None])[:, 0]
    return largest, total, of_target * own


def row_slopes(logits: Tensor, norms: Tensor, targets: Tensor) -> Tensor:
    """Return the slopes of the sum of all losses with respect to the logits, in the logits' type."""
    places = torch.arange(logits.shape[-1], device=logits.device)
    slopes = (logits.float() - norms[:, None]).exp() - (places == targets[:, None]).float()
    return slopes.to(logits.dtype)


class Kernels(NamedTuple):
    """What is computed of each logit; a suite may compile these functions."""

    statistics: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = row_statistics
    slopes: Callable[[Tensor, Tensor, Tensor], Tensor] = row_slopes


def mean_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    size: int,
    kernels: Kernels = Kernels(),  # noqa: B008 - immutable
) -> Tensor:
    """Return the mean loss of the targets, by ``hidden`` (tokens x width) and the head's weight.

    ``size`` is the number of tokens of a chunk. With tensor parallelism each rank has some rows of the weight, and all
    tokens. Gradients are computed in the forward pass: three products of a chunk's size, and nothing is computed again.
    """
    group, first = None, 0
    if isinstance(weight, DTensor):
        group, weight = weight.device_mesh.get_group(), weight.to_local()
        first = dist.get_rank(group) * len(weight)
    chunks = _Chunks(targets - first, size, type_of_products(weight), group, kernels)
    if torch.is_grad_enabled():
        loss: Tensor = _OnePass.apply(hidden, weight, chunks)
        return loss
    hidden, weight = hidden.to(chunks.lower), weight.to(chunks.lower)
    losses = [chunks.losses(F.linear(hidden[rows], weight), rows)[0] for rows in chunks.rows()]
    return torch.stack(losses).sum() / len(targets)


def type_of_products(tensor: Tensor) -> torch.dtype:
    """Return the type that autocast lowers products to, the tensor's own type without autocast."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


class _Chunks(NamedTuple):
    targets: Tensor
    """Counted from this rank's first row of the weight."""
    size: int
    lower: torch.dtype
    """The type of the products."""
    group: Any
    """The ranks that have a part of the vocabulary each, or None."""
    kernels: Kernels

    def rows(self) -> list[slice]:
        return [slice(start, start + self.size) for start in range(0, len(self.targets), self.size)]

    def losses(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the sum of a chunk's losses, and the logarithm of each row's sum of exp(logit)."""
        largest, total, of_target = self.kernels.statistics(logits, self.targets[rows])
        if self.group is not None:
            own = largest
            largest = own.clone()
            dist.all_reduce(largest, dist.ReduceOp.MAX, self.group)
            both = torch.stack((total * (own - largest).exp(), of_target))
            dist.all_reduce(both, group=self.group)
            total, of_target = both
        norms = largest + total.log()
        return (norms - of_target).sum(), norms


class _OnePass(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Computes the gradients together with the loss, while a chunk's logits are there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, chunks: _Chunks) -> Tensor:
        lowered, read = weight.to(chunks.lower), hidden.to(chunks.lower)
        by_hidden, by_weight = torch.empty_like(read), torch.zeros_like(weight, dtype=torch.float32)
        losses = []
        for rows in chunks.rows():
            logits = F.linear(read[rows], lowered)
            loss, norms = chunks.losses(logits, rows)
            losses.append(loss)
            slopes = chunks.kernels.slopes(logits, norms, chunks.targets[rows])
            by_hidden[rows] = slopes @ lowered
            by_weight += slopes.T @ read[rows]
        if chunks.group is not None:
            dist.all_reduce(by_hidden, group=chunks.group)
        # Not as saved tensors: the gradient is passed on without a copy. A second backward pass is an error.
        ctx.gradients = by_hidden, by_weight
        ctx.count, ctx.types = len(chunks.targets), (hidden.dtype, weight.dtype)
        return torch.stack(losses).sum() / ctx.count

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        gradients, ctx.gradients = ctx.gradients, None
        by_hidden, by_weight = (
            gradient.mul_(slope / ctx.count).to(kind) for gradient, kind in zip(gradients, ctx.types, strict=True)
        )
        return by_hidden, by_weight, None
