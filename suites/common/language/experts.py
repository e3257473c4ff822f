"""A mixture of experts: a router chooses a few experts for each token, and all experts compute in one call.

No token is dropped: an expert computes all tokens that chose it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from common.language.chunked_loss import type_of_products

HAS_GROUPED = hasattr(F, "grouped_mm")
"""Whether torch has one product for the rows of several matrices."""
LIMIT, SLOPE = 7.0, 1.702
"""Of gpt-oss's activation."""


class Routing(NamedTuple):
    """What a router did with the tokens of a forward pass."""

    unevenness: Tensor
    """0 if all experts get as many tokens, the number of experts less 1 if one gets them all; it has a gradient."""
    counts: Tensor
    """The number of tokens of each expert."""


class Experts(nn.Module):
    """Gated feed-forward layers, one after the other in each parameter; a rank may have some of them."""

    group: Any = None
    """The ranks that have a part of the experts each, or None."""

    def __init__(self, experts: int, width: int, hidden: int, *, grouped: bool = True) -> None:
        super().__init__()
        self.grouped = grouped and HAS_GROUPED
        self.gate_up = nn.Parameter(torch.empty(experts, width, 2 * hidden))
        self.gate_up_bias = nn.Parameter(torch.empty(experts, 2 * hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.down_bias = nn.Parameter(torch.empty(experts, width))

    def share(self, group: Any) -> None:
        """Exchange tokens with the ranks of a group: each has as many experts, in the order of the ranks."""
        self.group = group

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Compute rows that are sorted by expert; ``counts`` has the number of rows of each."""
        if self.group is None:
            return self.compute(rows, counts)
        return self._exchanged(rows, counts)

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Compute rows of this rank's experts."""
        gate_up, gate_up_bias, down, down_bias = (
            own_part(weight).to(rows.dtype) for weight in (self.gate_up, self.gate_up_bias, self.down, self.down_bias)
        )
        experts = torch.arange(len(counts), device=rows.device).repeat_interleave(counts, output_size=len(rows))
        hidden = activation(self._product(rows, gate_up, counts) + Chosen.apply(gate_up_bias, experts))
        return self._product(hidden, down, counts) + Chosen.apply(down_bias, experts)

    def _product(self, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Multiply the first counts[0] rows by weights[0], the next counts[1] rows by weights[1], and so on."""
        if self.grouped:
            return F.grouped_mm(rows, weights, offs=counts.cumsum(0, dtype=torch.int32))
        # The sizes are read back to the host, which waits for the device.
        parts = rows.split(counts.tolist())
        return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])

    def _exchanged(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send each row to the rank of its expert, and get it back computed.

        The host waits once for the numbers of rows: buffers of the collectives have exact sizes.
        """
        ranks = dist.get_world_size(self.group)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        by_rank = torch.stack((counts, received)).view(2, ranks, -1)
        out, back = by_rank.sum(-1).tolist()
        arrived = Exchanged.apply(rows, back, out, self.group)
        of_ranks = by_rank[1]
        # From each rank come rows sorted by expert: sort them over all ranks.
        experts = torch.arange(of_ranks.shape[1], device=rows.device).repeat(ranks)
        order = experts.repeat_interleave(of_ranks.flatten(), output_size=len(arrived)).argsort(stable=True)
        place = inverse(order)
        rows, counts = Gathered.apply(arrived, order, place, 1), of_ranks.sum(0)
        if not len(arrived):
            # A grouped product has no gradients without rows, and the other ranks wait for this rank's.
            rows, counts = F.pad(rows, (0, 0, 0, 1)), F.pad(counts[1:], (1, 0), value=1)
        computed = self.compute(rows, counts)[: len(arrived)]
        return Exchanged.apply(Gathered.apply(computed, place, order, 1), out, back, self.group)


class MixtureOfExperts(nn.Module):
    """A router, and the experts that it chooses for each token."""

    parts = 1
    """The number of ranks among which tensor parallelism divides the tokens of a sample."""

    def __init__(self, experts: int, chosen: int, width: int, hidden: int, *, grouped: bool = True) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts)
        self.experts = Experts(experts, width, hidden, grouped=grouped)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        tokens = x.flatten(0, -2)
        tokens = tokens.to(type_of_products(tokens))
        scores = self.router(tokens)
        best, experts = scores.topk(self.chosen, dim=-1)
        experts = experts.flatten()
        counts = (experts[:, None] == torch.arange(scores.shape[-1], device=x.device)).sum(0)
        order = experts.argsort(stable=True)
        place = inverse(order)
        rows = self.experts(Gathered.apply(tokens, order, place, self.chosen), counts)
        rows = Gathered.apply(rows, place, order, 1).unflatten(0, (-1, self.chosen))
        shares = best.softmax(-1, dtype=torch.float32).to(rows.dtype)
        mixed = (rows * shares[..., None]).sum(1)
        uneven = unevenness(scores, counts / len(experts))
        if self.parts > 1:
            # The gradients of all parts are added up; the losses that they log are averaged.
            uneven = uneven.detach() + (uneven - uneven.detach()) / self.parts
        return mixed.view_as(x).to(x.dtype), Routing(uneven, counts)


def activation(x: Tensor) -> Tensor:
    """Return gpt-oss's gated activation: even columns are gates, odd ones the values."""
    gate, value = x[..., ::2].clamp(max=LIMIT), x[..., 1::2].clamp(-LIMIT, LIMIT)
    return (value + 1) * gate * torch.sigmoid(SLOPE * gate)


def unevenness(scores: Tensor, used: Tensor) -> Tensor:
    """Return the unevenness of a router's scores; ``used`` is the part of the choices that fell on each expert."""
    return len(used) * (used * scores.softmax(-1, dtype=torch.float32).mean(0)).sum() - 1


def inverse(order: Tensor) -> Tensor:
    """Return the place of each element in an order."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


class Exchanged(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The rows that arrive when each rank sends the first sent[0] rows to the first rank, and so on.

    torch's own collective with a gradient returns a view, whose changes in place FSDP would not see.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int], group: Any) -> Tensor:
        ctx.arguments = sent, received, group
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None, None]:
        return Exchanged.apply(slopes, *ctx.arguments), None, None, None


class Gathered(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Rows in another order, each ``copies`` times; the gradient is gathered as well, instead of added up by atomics.

    ``order`` has numbers of copies, ``place`` is its inverse.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, place: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.copies = copies
        return rows.index_select(0, order // copies if copies > 1 else order)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        gathered = slopes.index_select(0, place)
        return gathered.unflatten(0, (-1, ctx.copies)).sum(1) if ctx.copies > 1 else gathered, None, None, None


class Chosen(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The bias of each row's expert; few experts have many rows, so their gradients are added by a matrix product."""

    @staticmethod
    def forward(ctx: Any, biases: Tensor, experts: Tensor) -> Tensor:
        ctx.save_for_backward(experts)
        ctx.count = len(biases)
        return biases.index_select(0, experts)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
        (experts,) = ctx.saved_tensors
        rows = torch.arange(ctx.count, device=slopes.device)[:, None] == experts
        return rows.to(slopes.dtype) @ slopes, None


def own_part(weight: Tensor) -> Tensor:
    """Return this rank's part of a weight that ranks divide."""
    return weight.to_local() if isinstance(weight, DTensor) else weight
