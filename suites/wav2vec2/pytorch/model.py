"""Wav2Vec2: convolutions turn speech into frames; a Transformer tells what the masked frames are.

The right answers are learnt too: each frame's features choose one code of each codebook.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from common.speech.networks import Convolution, TimeNorm
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from flagperf_driver.pytorch.steps import compile_methods

if TYPE_CHECKING:
    from flagperf_driver.pytorch import Context


def create_model(ctx: Context) -> nn.Module:
    """Return the network with random weights."""
    return Wav2Vec2(ctx.config)


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile the parts with nearly all of the work: the convolutions, and one layer of the encoder for all of them."""
    assert isinstance(model, Wav2Vec2)
    compile_methods(ctx, [model.convolutions, *model.encoder.layers], "forward")
    compile_methods(ctx, [model.encoder], "placed")
    return model


class Answers(NamedTuple):
    """What the network says about the masked frames."""

    logits: Tensor
    """(N, masked, 1 + negatives): how near the right frame is, and each of the others."""
    penalty: Tensor
    """The mean square of the features."""
    chances: Tensor
    """(codebooks, codes): the mean probability of each code."""
    chosen: Tensor
    """(codebooks, codes): how many masked frames chose each code."""


class Wav2Vec2(nn.Module):
    """The whole network. ``config`` has the sizes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.convolutions[-1][0]
        self.feature_gradient, self.temperature = config.feature_gradient, config.temperature
        self.convolutions = Convolutions(config.convolutions)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, config.channels)
        self.dropout = nn.Dropout(config.dropout)
        self.mask = nn.Parameter(torch.rand(config.channels))
        self.encoder = Encoder(config)
        self.quantizer = Quantizer(width, config.codebooks, config.codes, config.code_channels)
        self.project_code = nn.Linear(config.code_channels, config.projected_channels)
        self.project_frame = nn.Linear(config.channels, config.projected_channels)

    def forward(self, audio: Tensor, masked: Tensor, others: Tensor, gumbel: Tensor) -> Answers:
        """Answer for the ``masked`` frames; ``gumbel`` is the temperature at which codes are chosen."""
        features = self.convolutions(audio)
        if self.training:  # the convolutions learn more slowly than the rest
            features = self.feature_gradient * features + (1 - self.feature_gradient) * features.detach()
        penalty = features.float().square().mean()
        features = self.norm(features)
        codes, choice, chances = self.quantizer(self.dropout(_at(features, masked)), gumbel)
        hidden = self.dropout(self.widen(features))
        places = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=audio.device).scatter(1, masked, value=True)
        told = _at(self.encoder(torch.where(places[..., None], self.mask.to(hidden.dtype), hidden)), masked)
        logits = _similarities(self.project_frame(told), self.project_code(codes), others.long()) / self.temperature
        logits[..., 1:].masked_fill_(_same(choice, others.long()), -math.inf)
        counts = (choice[..., None] == torch.arange(chances.shape[1], device=audio.device)).sum((0, 1))
        return Answers(logits, penalty, chances, counts)


def _at(frames: Tensor, masked: Tensor) -> Tensor:
    """Return the masked frames, (N, masked, channels)."""
    return frames.gather(1, masked[..., None].expand(-1, -1, frames.shape[2]))


def _similarities(told: Tensor, right: Tensor, others: Tensor) -> Tensor:
    """Return the cosines of each answer with the right frame, and with the others."""
    told, right = (functional.normalize(part.float(), dim=2) for part in (told, right))
    all_pairs = torch.bmm(told, right.transpose(1, 2)).float()
    return torch.cat([all_pairs.diagonal(dim1=1, dim2=2)[..., None], all_pairs.gather(2, others)], 2)


def _same(choice: Tensor, others: Tensor) -> Tensor:
    """Return whether the others have the same codes as the right frame: then they are no wrong answers."""
    pairs = (choice[:, :, None] == choice[:, None]).all(3)
    return pairs.gather(2, others)


class Convolutions(nn.Module):
    """From audio, (N, samples), to features, (N, frames, channels)."""

    def __init__(self, sizes: list[list[int]]) -> None:
        super().__init__()
        before = [1, *(channels for channels, _, _ in sizes)]
        self.layers = nn.ModuleList(
            Convolution(wide, channels, kernel, stride, bias=False)
            for wide, (channels, kernel, stride) in zip(before, sizes, strict=False)
        )
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)
        self.norm = TimeNorm(sizes[0][0])

    def forward(self, audio: Tensor) -> Tensor:
        features = audio[..., None]
        for number, layer in enumerate(self.layers):
            features = layer(features)
            features = functional.gelu(self.norm(features) if number == 0 else features)
        return features


class Encoder(nn.Module):
    """A Transformer. Convolutions over many frames tell it the positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        channels, kernel, dropout = config.channels, config.position_kernel, config.dropout
        positions = Convolution(channels, channels, kernel, padding=kernel // 2, groups=config.position_groups)
        nn.init.normal_(positions.weight, 0, math.sqrt(4 / (kernel * channels)))
        nn.init.zeros_(positions.bias)  # type: ignore[arg-type]
        self.positions = weight_norm(positions, dim=2)
        self.norm = nn.LayerNorm(channels)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(channels, config.heads, config.inner_channels, dropout, config.layer_drop)
            for _ in range(config.layers)
        )

    def forward(self, frames: Tensor) -> Tensor:
        hidden = self.placed(frames)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    def placed(self, frames: Tensor) -> Tensor:
        """Return the frames with their positions."""
        positions = self.positions(frames)[:, : frames.shape[1]]
        placed: Tensor = self.dropout(self.norm(frames + functional.gelu(positions)))
        return placed


class Layer(nn.TransformerEncoderLayer):
    """A layer with the initial weights of BERT; its inner activation has no dropout. Training may leave it out."""

    def __init__(self, channels: int, heads: int, inner: int, dropout: float, layer_drop: float) -> None:
        super().__init__(channels, heads, inner, dropout, "gelu", batch_first=True)
        self.dropout.p = 0.0
        self.layer_drop = layer_drop
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor) -> Tensor:
        after = super().forward(hidden)
        if self.training and self.layer_drop:
            # The layer is computed and then left out: all ranks and all steps have one graph.
            after = torch.where(torch.rand((), device=hidden.device) < self.layer_drop, hidden, after)
        return after


class Quantizer(nn.Module):
    """Chooses a code of each codebook for each frame."""

    def __init__(self, width: int, books: int, codes: int, channels: int) -> None:
        super().__init__()
        self.choose = nn.Linear(width, books * codes)
        nn.init.normal_(self.choose.weight)
        nn.init.zeros_(self.choose.bias)
        self.codes = nn.Parameter(torch.rand(books, codes, channels // books))

    def forward(self, features: Tensor, gumbel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes (N, frames, channels), their numbers (N, frames, books) and the codes' mean probability.

        In training the choice is random: the more likely a code, the more often it is chosen.
        """
        logits = self.choose(features).float().unflatten(2, self.codes.shape[:2])
        chances = logits.softmax(3).mean((0, 1))
        if self.training:
            choices = functional.gumbel_softmax(logits, gumbel, hard=True)
        else:
            choices = functional.one_hot(logits.argmax(3), logits.shape[3]).to(logits.dtype)
        codes = torch.einsum("nfbc,bcd->nfbd", choices, self.codes)
        return codes.flatten(2), choices.argmax(3), chances
