"""FLUX.1's transformer: tokens of image and text, first in two streams with one attention, then in one stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from flagperf_driver.pytorch.sharding import Uniform

PATCH = 2
"""Rows and columns of latents in a token of the image."""
EPSILON = 1e-6
"""Of all norms."""
TIME_FACTOR = 1000.0
"""Times are from 0 to 1, their waves as if from 0 to 1000."""
LONGEST_WAVE = 10_000.0
EMBEDDER_STD = 0.02
"""The deviation of the initial weights of the layers that embed time and text."""


@dataclass(frozen=True)
class Shape:
    """The config keys that describe a transformer."""

    latent_channels: int
    text_size: int
    """Values of a text token."""
    pooled_size: int
    """Values of the vector of the whole text."""
    hidden_size: int
    num_heads: int
    num_double_blocks: int
    num_single_blocks: int
    mlp_ratio: int
    rope_axes: Sequence[int]
    """How many values of a head turn by the number, the row and the column of a token; together the head's size."""
    rope_theta: float
    time_waves: int
    """Cosines and sines that describe a time."""

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Return the shape that a suite's config describes; raise an error if its numbers do not fit together."""
        shape = cls(**{field.name: getattr(config, field.name) for field in fields(cls)})
        if shape.hidden_size % shape.num_heads or sum(shape.rope_axes) != shape.head_size:
            raise ValueError(
                f"hidden_size = {shape.hidden_size}, num_heads = {shape.num_heads}, rope_axes = {shape.rope_axes}; "
                "expected axes with the sum hidden_size / num_heads"
            )
        return shape

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_size(self) -> int:
        """Return the number of values of an image token."""
        return self.latent_channels * PATCH * PATCH

    @property
    def mlp_size(self) -> int:
        return self.mlp_ratio * self.hidden_size


# -- functions without weights -----------------------------------------------------------------------------


def patches(latents: Tensor) -> Tensor:
    """Return (images, tokens, values) of (images, channels, rows, columns); a token's values are channel by channel."""
    parts = latents.unflatten(2, (-1, PATCH)).unflatten(4, (-1, PATCH))
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def latents_of(tokens: Tensor, rows: int, columns: int) -> Tensor:
    """Return the latents of ``patches``."""
    parts = tokens.unflatten(2, (-1, PATCH, PATCH)).unflatten(1, (rows // PATCH, columns // PATCH))
    return parts.permute(0, 3, 1, 4, 2, 5).reshape(len(tokens), -1, rows, columns)


def positions(words: int, rows: int, columns: int) -> Tensor:
    """Return the number, row and column of each token, the text first: all tokens of the text are at 0, 0, 0."""
    grid = torch.zeros(rows, columns, 3, dtype=torch.float64, device="cpu")
    grid[..., 1] = torch.arange(rows, device="cpu")[:, None]
    grid[..., 2] = torch.arange(columns, device="cpu")
    return torch.cat((torch.zeros(words, 3, dtype=torch.float64, device="cpu"), grid.flatten(0, 1)))


def turns(places: Tensor, axes: Sequence[int], theta: float) -> Tensor:
    """Return cosines and sines by which pairs of values turn at these places: (2, tokens, head size / 2), fp32."""
    angles = []
    for axis, size in enumerate(axes):
        powers = torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size
        angles.append(torch.outer(places[:, axis], theta**-powers))
    together = torch.cat(angles, dim=1)
    return torch.stack((together.cos(), together.sin())).float()


def rotate(x: Tensor, turned: Tensor) -> Tensor:
    """Turn the pairs of neighbouring values, 0 and 1, 2 and 3; x is (images, heads, tokens, size). In fp32."""
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosines, sines = turned
    return torch.stack((first * cosines - second * sines, first * sines + second * cosines), dim=-1).flatten(-2)


def waves(times: Tensor, count: int) -> Tensor:
    """Return cosines, then sines, of each time with frequencies from 1 to almost 1 / LONGEST_WAVE, in fp32.

    In bf16, 0.999 is 1: the times would be rounded, and then multiplied by 1000.
    """
    half = count // 2
    powers = torch.arange(half, dtype=torch.float32, device=times.device) / half
    angles = TIME_FACTOR * times.float()[:, None] * torch.exp(-math.log(LONGEST_WAVE) * powers)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalize each token without weights of its own, then scale and shift it."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON).to(x.dtype) * (1 + scale) + shift


def attend(query: Tensor, key: Tensor, value: Tensor, turned: Tensor) -> Tensor:
    """Return (images, tokens, width) of the attention of all tokens to all."""
    query, key = rotate(query, turned).to(value.dtype), rotate(key, turned).to(value.dtype)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


# -- modules -----------------------------------------------------------------------------------------------


class Embedder(nn.Module):
    """Makes a vector of the model's width of a time or a text."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(size, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(F.silu(self.into(x)))
        return result


class Modulation(nn.Module):
    """Makes ``count`` vectors, (images, 1, width) each, of the vector of time and text."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(width, count * width)

    def forward(self, vector: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.linear(F.silu(vector))[:, None].chunk(self.count, dim=-1))


class Heads(nn.Module):
    """Splits queries, keys and values into heads; normalizes queries and keys."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.query = nn.RMSNorm(size, EPSILON)
        self.key = nn.RMSNorm(size, EPSILON)

    def forward(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take (images, tokens, 3 x width); return (images, heads, tokens, head size) three times."""
        query, key, value = qkv.unflatten(-1, (3, -1, self.size)).permute(2, 0, 3, 1, 4)
        return self.query(query), self.key(key), value


class Stream(nn.Module):
    """The layers of a double block that belong to the image, or to the text."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.modulation = Modulation(width, 6)
        self.qkv = nn.Linear(width, 3 * width)
        self.heads = Heads(shape.head_size)
        self.project = nn.Linear(width, width)
        self.into = nn.Linear(width, shape.mlp_size)
        self.out = nn.Linear(shape.mlp_size, width)

    def before(self, x: Tensor, vector: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
        """Return the modulation, and queries, keys and values."""
        modulation = self.modulation(vector)
        shift, scale, *_ = modulation
        return modulation, self.heads(self.qkv(modulate(x, shift, scale)))

    def after(self, x: Tensor, seen: Tensor, modulation: tuple[Tensor, ...]) -> Tensor:
        """Return the stream with what attention saw and what the feed-forward layers add."""
        _, _, gate, shift, scale, feed_gate = modulation
        x = x + gate * self.project(seen)
        hidden = F.gelu(self.into(modulate(x, shift, scale)), approximate="tanh")
        return x + feed_gate * self.out(hidden)


class DoubleBlock(nn.Module):
    """Image and text with weights of their own, and one attention over both."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.image = Stream(shape)
        self.text = Stream(shape)

    def forward(self, image: Tensor, text: Tensor, vector: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        of_text, from_text = self.text.before(text, vector)
        of_image, from_image = self.image.before(image, vector)
        query, key, value = (torch.cat(both, dim=2) for both in zip(from_text, from_image, strict=True))
        words = text.shape[1]
        seen = attend(query, key, value, turned)
        text = self.text.after(text, seen[:, :words], of_text)
        return self.image.after(image, seen[:, words:], of_image), text


class SingleBlock(nn.Module):
    """All tokens in one stream: attention and feed-forward layers side by side, with one product before and after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.modulation = Modulation(width, 3)
        self.sizes = [3 * width, shape.mlp_size]
        self.into = nn.Linear(width, sum(self.sizes))
        self.heads = Heads(shape.head_size)
        self.out = nn.Linear(width + shape.mlp_size, width)

    def forward(self, x: Tensor, vector: Tensor, turned: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(vector)
        qkv, hidden = self.into(modulate(x, shift, scale)).split(self.sizes, dim=-1)
        seen = attend(*self.heads(qkv), turned)
        return x + gate * self.out(torch.cat((seen, F.gelu(hidden, approximate="tanh")), dim=-1))


class Last(nn.Module):
    """The last modulation, and the values of each image token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.modulation = Modulation(shape.hidden_size, 2)
        self.linear = nn.Linear(shape.hidden_size, shape.patch_size)

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        shift, scale = self.modulation(vector)
        result: Tensor = self.linear(modulate(x, shift, scale))
        return result


class Transformer(nn.Module):
    """Predicts the velocity, noise minus latents, of noised latents at a time, for a text.

    With precision bf16 the streams have this type; times and angles of positions stay in fp32.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.image_in = nn.Linear(shape.patch_size, shape.hidden_size)
        self.text_in = nn.Linear(shape.text_size, shape.hidden_size)
        self.time_in = Embedder(shape.time_waves, shape.hidden_size)
        self.pooled_in = Embedder(shape.pooled_size, shape.hidden_size)
        self.double_blocks = nn.ModuleList(DoubleBlock(shape) for _ in range(shape.num_double_blocks))
        self.single_blocks = nn.ModuleList(SingleBlock(shape) for _ in range(shape.num_single_blocks))
        self.last = Last(shape)
        self._turns: dict[tuple[int, int, int, torch.device], Tensor] = {}

    @property
    def blocks(self) -> list[nn.Module]:
        """Return the blocks in the order of their computation."""
        return [*self.double_blocks, *self.single_blocks]

    def initial(self, name: str) -> float | Uniform | None:
        """Return the standard deviation of a parameter's initial values or Xavier's limit, None for ones.

        The modulations are 0, so that each block begins as the identity, and so is the last layer.
        """
        if ".heads." in name:
            return None
        if name.endswith(".bias") or ".modulation." in name or name == "last.linear.weight":
            return 0.0
        if name.startswith(("time_in.", "pooled_in.")):
            return EMBEDDER_STD
        return Uniform(math.sqrt(6 / sum(self.get_parameter(name).shape)))

    def tie(self) -> None:
        """Do nothing: no modules share a parameter."""

    def forward(self, latents: Tensor, times: Tensor, text: Tensor, pooled: Tensor) -> Tensor:
        """Return the velocity of each latent value.

        ``latents`` are (images, channels, rows, columns), ``times`` from 0 (latents) to 1 (noise), ``text`` (images,
        words, values), ``pooled`` (images, values).
        """
        rows, columns = latents.shape[2:]
        turned = self._turned(text.shape[1], rows // PATCH, columns // PATCH, latents.device)
        kind = self.image_in.weight.dtype  # FSDP gathers weights in a lower one
        vector = self.time_in(waves(times, self.shape.time_waves).to(kind)) + self.pooled_in(pooled.to(kind))
        image, words = self.image_in(patches(latents).to(kind)), self.text_in(text.to(kind))
        for block in self.double_blocks:
            image, words = block(image, words, vector, turned)
        both = torch.cat((words, image), dim=1)
        for block in self.single_blocks:
            both = block(both, vector, turned)
        return latents_of(self.last(both[:, words.shape[1] :], vector), rows, columns)

    def _turned(self, words: int, rows: int, columns: int, device: torch.device) -> Tensor:
        """Return cosines and sines of all tokens; a buffer would have no values after to_empty()."""
        key = words, rows, columns, device
        if key not in self._turns:
            angles = turns(positions(words, rows, columns), self.shape.rope_axes, self.shape.rope_theta)
            self._turns[key] = angles.to(device)
        return self._turns[key]
