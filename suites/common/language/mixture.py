"""gpt-oss's decoder: a mixture of experts in each block, attention with sinks, to a window in every second block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.language import sink_attention
from common.language.decoder import Attention, Decoder, Shape, plain_frequencies
from common.language.experts import MixtureOfExperts, Routing, own_part


@dataclass(frozen=True)
class MixtureShape(Shape):
    """The config keys that describe a decoder with experts; ``intermediate_size`` is that of one expert."""

    num_experts: int
    experts_per_token: int
    attention_window: int
    """The places that a query sees in blocks 0, 2, 4 and so on."""
    balance_factor: float
    """How much an uneven load of the experts adds to the loss of the training."""
    grouped_products: bool


def yarn_frequencies(shape: Shape) -> tuple[Tensor, float]:
    """Return by how much each pair of dimensions turns per position, and the factor of queries and keys (YaRN).

    Pairs with fewer turns than ``rope_low`` in the context of the first training turn slower by ``rope_factor``. From
    ``rope_low`` to ``rope_high`` turns the number of the pair decides, not its turns as in Llama.
    """
    size, circle = shape.head_size, 2 * math.pi

    def pair(turns: float) -> float:
        """Return the number of the pair, counted in dimensions, that has so many turns."""
        return size / 2 * math.log(shape.rope_old_context / (turns * circle)) / math.log(shape.rope_theta)

    first, last = max(pair(shape.rope_high), 0), min(pair(shape.rope_low), size - 1)
    slowed = ((torch.arange(size // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
    turned = plain_frequencies(shape) * (1 - slowed + slowed / shape.rope_factor)
    return turned, 0.1 * math.log(shape.rope_factor) + 1


class SinkAttention(Attention):
    def __init__(self, shape: Shape, window: int | None) -> None:
        super().__init__(shape, bias=True)
        self.window = window
        self.sinks = nn.Parameter(torch.empty(shape.num_heads))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # With tensor parallelism a rank has some of the heads.
        return sink_attention.attend(q, k, v, own_part(self.sinks), self.window)


class MixtureBlock(nn.Module):
    """Norm, attention, residual; norm, experts, residual."""

    def __init__(self, shape: MixtureShape, window: int | None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.attention = SinkAttention(shape, window)
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.mixture = MixtureOfExperts(
            shape.num_experts, shape.experts_per_token, shape.hidden_size, shape.intermediate_size,
            grouped=shape.grouped_products,
        )  # fmt: skip

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Routing]:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        mixed, routing = self.mixture(self.norm(x))
        return x + mixed, routing


class MixtureDecoder(Decoder):
    """Predicts each token from the tokens before it, and counts the tokens of each expert while it trains."""

    shape: MixtureShape

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__(shape)
        self._routings: list[Routing] = []
        self._load: Tensor | None = None

    def _block(self, number: int) -> nn.Module:
        return MixtureBlock(self.shape, None if number % 2 else self.shape.attention_window)

    def _frequencies(self) -> tuple[Tensor, float]:
        return yarn_frequencies(self.shape)

    def initial(self, name: str) -> float | None:
        """Return the standard deviation of a parameter's initial values: 0 for biases and sinks, None for ones."""
        if name.endswith(("bias", "sinks")):
            return 0.0
        return super().initial(name)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss of the targets, in the training with the balance; without targets the logits."""
        result = super().forward(tokens, targets)
        routings, self._routings = self._routings, []
        if not self.training or targets is None:
            return result
        counts = torch.stack([routing.counts for routing in routings]).detach()
        self._load = counts if self._load is None else self._load + counts
        if not self.shape.balance_factor:
            return result
        uneven = torch.stack([routing.unevenness for routing in routings]).mean()
        return result + self.shape.balance_factor * uneven

    def _after(self, block: nn.Module, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        after, routing = block(x, cosines, sines)
        self._routings.append(routing)
        stream: Tensor = after
        return stream

    def take_load(self) -> Tensor | None:
        """Return the tokens of each expert (blocks x experts) since the last call; None without a training step."""
        load, self._load = self._load, None
        return load
