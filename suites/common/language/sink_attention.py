"""Causal attention with a sink for each head, to all places before or to a window of them.

A sink is a number that takes part in the softmax and has no value: it takes away some of the attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

EXTRA = 8
"""Dimensions that are added to each head for the sink; fused kernels expect a multiple of 8."""


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """Return the attention's output (texts, heads, places, size); keys and values may have fewer heads.

    ``window`` is the number of places that a query sees, its own included; None for all.

    The sink is a further key before all others, whose product with each query of a head is the head's sink. So every
    fused kernel computes it, with its gradients. The product is in the dimensions that are added.
    """
    size = q.shape[-1]
    scale = size**-0.5
    raised = sinks.float() / scale
    # A single bf16 number is too coarse: the sink is the sum of two.
    high = raised.to(q.dtype)
    pair = torch.stack((high, (raised - high.float()).to(q.dtype)), -1)
    tail = F.pad(pair, (0, EXTRA - 2))[None, :, None].expand(*q.shape[:-1], EXTRA)
    q, k, v = torch.cat((q, tail), -1), F.pad(k, (0, EXTRA)), F.pad(v, (0, EXTRA))
    whole = window is None or window >= q.shape[2]
    mixed = _to_all(q, k, v, scale) if whole or window is None else _to_window(q, k, v, scale, window)
    return mixed[..., :size]


def _sink_first(keys: Tensor) -> Tensor:
    """Return the keys behind the sink's key, which has ones in the two places of the sink."""
    key = F.pad(keys.new_ones(*keys.shape[:2], 1, 2), (keys.shape[-1] - EXTRA, EXTRA - 2))
    return torch.cat((key, keys), 2)


def _to_all(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend to all places before; a query that nobody uses stands in the sink's place, so that the mask is causal."""
    q, v = F.pad(q, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
    mixed = F.scaled_dot_product_attention(q, _sink_first(k), v, is_causal=True, enable_gqa=True, scale=scale)
    return mixed[:, :, 1:]


def _to_window(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Attend to a window; a block of queries sees its own block of keys and the one before, so the cost is linear."""
    texts, _, places, _ = q.shape
    blocks = -(-places // window)
    q, k, v = (F.pad(part, (0, 0, 0, blocks * window - places)) for part in (q, k, v))
    keys, values = _sink_first(_with_previous(k, window)), F.pad(_with_previous(v, window), (0, 0, 1, 0))
    seen = _seen(blocks, window, q.device).repeat(texts, 1, 1, 1)
    mixed = F.scaled_dot_product_attention(
        _in_blocks(q, window), keys, values, attn_mask=seen, enable_gqa=True, scale=scale
    )
    return mixed.unflatten(0, (texts, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :places]


def _in_blocks(x: Tensor, window: int) -> Tensor:
    """Return (texts x blocks, heads, window, size)."""
    return x.unflatten(2, (-1, window)).transpose(1, 2).flatten(0, 1)


def _with_previous(x: Tensor, window: int) -> Tensor:
    """Return each block behind the block before it; zeros before the first one."""
    before = F.pad(x, (0, 0, window, 0))[:, :, :-window]
    return torch.cat((_in_blocks(before, window), _in_blocks(x, window)), 2)


def _seen(blocks: int, window: int, device: torch.device) -> Tensor:
    """Return which keys the queries of each block see (blocks, 1, window, 1 + 2 x window); the first is the sink."""
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(-window, window, device=device)
    near = (key <= query) & (key > query - window)
    exists = (key >= 0) | (torch.arange(blocks, device=device) > 0)[:, None, None]
    return F.pad(near & exists, (1, 0), value=True)[:, None]
